"""Describes training graphs of recipes' steps and of compiled Keras models in one form."""

from __future__ import annotations

import dataclasses
import re
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.errors import UnsupportedError

# Placeholders. The number of the step (int64) seeds dropout masks, and other random numbers in
# copies of a graph. The gradient seed (float32) is d loss / d loss.
DROPOUT_STEP = "amp_xla_dropout_step"
GRADIENT_SEED = "amp_xla_gradient_seed"
# Name of the constant with which tf.gradients starts the backward pass, on 1.15 and on 2.x.
_GRADIENT_SEED = re.compile(r"(^|/)grad_ys_\d+(/Const)?$")
_STATELESS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}


@dataclasses.dataclass(frozen=True)
class TrainingGraph:
    """A training graph, as ``inspect`` and ``rehearse`` need it.

    Tensors and operations are given by an operation's name; the tensor is its first output.

    Attributes:
      graph: tf.Graph.
      feeds: placeholder -> static shape, None for an unknown dimension; in feeding order.
      constants: placeholder -> value that it gets in every step, such as the learning phase.
      loss: the float32 loss, unscaled.
      train: operations of the update.
      gradients: (variable, unscaled gradient) for each trained variable that has a gradient; for an
        IndexedSlices, its ``values``.
      loss_scale: the current loss scale.
      finite: a boolean that is false if the update is skipped; None if updates are never skipped.
      layers: Keras layers by name, including those of nested models.
      model: the Keras model, which checks and orders the arrays of a batch; None for a step.
    """

    graph: Any
    feeds: Mapping[str, Sequence[Optional[int]]]
    constants: Mapping[str, Any]
    loss: str
    train: Sequence[str]
    gradients: Sequence[Tuple[str, str]]
    loss_scale: str
    finite: Optional[str]
    layers: Mapping[str, Any]
    model: Any = None

    @property
    def fetches(self) -> List[str]:
        """Operations that a training step runs: the update and the loss."""
        return [*self.train, self.loss]

    @property
    def ends(self) -> List[str]:
        """The loss and the gradients."""
        return [self.loss, *(gradient for _, gradient in self.gradients)]

    def arrays(self, batch: Sequence[Any]) -> List[Any]:
        """Return the arrays of a batch in feeding order.

        Args:
          batch: for a Keras model, inputs, targets and sample weights as for ``fit``; for a
            ``TrainStep``, its arrays in feeding order.

        Raises:
          UnsupportedError: the arrays do not fit the model's placeholders.
        """
        arrays = list(batch)
        if self.model is not None:
            try:
                inputs, targets, weights = self.model._standardize_user_data(*batch)
            except (TypeError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise UnsupportedError(f"the batch does not fit the model: {reason}") from error
            arrays = [*inputs, *targets, *(w for w in weights or () if w is not None)]
        if len(arrays) != len(self.feeds):
            raise UnsupportedError(
                f"{len(arrays)} arrays for {len(self.feeds)} placeholders; needed, in this order: "
                f"{', '.join(self.feeds)}"
            )
        return arrays

    def feed_shapes(self, batch: Optional[Sequence[Any]]) -> Dict[str, List[int]]:
        """Return placeholder -> shape of its array; without ``batch``, 32 rows of 128 tokens."""
        if batch is None:
            return {
                name: [d or (128 if i else 32) for i, d in enumerate(shape)]
                for name, shape in self.feeds.items()
            }
        return {n: list(np.shape(array)) for n, array in zip(self.feeds, self.arrays(batch))}

    def export(self, fetches: Sequence[str], repeatable: bool = True) -> Any:
        """Return the GraphDef that computes ``fetches``, by default with repeatable random numbers.

        The constant d loss / d loss = 1, with which the backward pass starts, becomes the
        placeholder ``GRADIENT_SEED``, whose value scales all gradients. ``repeatable``: random
        numbers depend only on the operation's name and on the step fed to ``DROPOUT_STEP``, so that
        two copies draw the same dropout masks.
        """
        # Leaves out everything that the fetches do not need, such as evaluation graphs.
        graph_def = tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), list(fetches))
        with tf.Graph().as_default() as seeds:
            tf.placeholder(tf.float32, [], GRADIENT_SEED)
            step = tf.placeholder(tf.int64, [], DROPOUT_STEP)
            for node in graph_def.node:
                if repeatable and node.op in _STATELESS:
                    _make_stateless(node, step)
                elif node.op == "Const" and _GRADIENT_SEED.search(node.name):
                    node.op, node.input[:] = "Identity", [GRADIENT_SEED]
                    node.attr["T"].type = tf.float32.as_datatype_enum
                    del node.attr["dtype"], node.attr["value"]
                node.attr.pop("_class", None)
        present = {node.name for node in graph_def.node}
        graph_def.node.extend(n for n in seeds.as_graph_def().node if n.name not in present)
        return graph_def

    def values(self) -> Dict[str, Any]:
        """Return variable op name -> value for all initialized variables."""
        with self.graph.as_default():
            session, variables = backend.session(), tf.global_variables()
            missing = {id(v) for v in backend.uninitialized(variables)}
            ready = [v for v in variables if id(v) not in missing]
            return {v.op.name: x for v, x in zip(ready, session.run(ready))}


def _make_stateless(node: Any, step: Any) -> None:
    """Turn e.g. RandomUniform into StatelessRandomUniform seeded by (name, ``step``)."""
    number = tf.constant(zlib.crc32(node.name.encode()), tf.int64, name="amp_xla_seeds/layer")
    seed = tf.stack([number, step], name="amp_xla_seeds/seed")
    node.op = _STATELESS[node.op]
    controls = [text for text in node.input if text.startswith("^")]
    node.input[:] = [node.input[0], seed.op.name, *controls]
    for name in ("seed", "seed2"):
        node.attr.pop(name, None)
    node.attr["Tseed"].type = tf.int64.as_datatype_enum


def view(model: Any) -> TrainingGraph:
    """Return the training graph of a ``Job``, a ``TrainStep`` or a compiled Keras model."""
    if isinstance(model, keras.models.Model):
        return from_model(model)
    return from_step(getattr(model, "step", model), getattr(model, "model", None))


def from_step(step: Any, model: Any = None) -> TrainingGraph:
    """Return the training graph of a ``TrainStep``, with the layers of ``model``."""
    names = {id(v): v.op.name for v in step.variables}
    return TrainingGraph(
        graph=step.loss.graph,
        feeds={tensor.op.name: _static_shape(tensor) for tensor in step._inputs},
        constants={},
        loss=step.loss.op.name,
        train=[step.train_op.name],
        gradients=[(names[id(v)], _dense_name(g)) for g, v in step.gradients if g is not None],
        loss_scale=step.optimizer.loss_scale.op.name,
        finite=step.optimizer.gradients_finite.op.name,
        layers=layers_of(model),
    )


def from_model(model: Any) -> TrainingGraph:
    """Build the training function of a compiled Keras model; return its training graph."""
    if getattr(model, "optimizer", None) is None or not hasattr(model, "total_loss"):
        raise UnsupportedError(
            f"model {model.name!r} is not compiled, so it has no training "
            f"graph; call model.compile(loss=..., optimizer=...) first"
        )
    model._make_train_function()
    function, loss, optimizer = model.train_function, model.total_loss, model.optimizer
    # Only amp_xla's LossScaleOptimizer has these attributes.
    finite, pairs = (getattr(optimizer, n, None) for n in ("gradients_finite", "gradients"))
    with loss.graph.as_default(), tf.name_scope("rehearsal"):
        if pairs is None:
            # The gradients inside the optimizer's update are out of reach, so a second backward
            # pass is built. It runs only if gradients are fetched.
            variables = list(model.trainable_weights)
            pairs = zip(tf.gradients(loss, variables), variables)
        gradients = [(v.op.name, _dense_name(g)) for g, v in pairs if g is not None]
        loss_scale = tf.identity(1.0 if finite is None else optimizer.loss_scale)
        loss = tf.identity(loss, "loss")
    feeds, constants = {}, {}
    targets = _target_shapes(model)
    for tensor in function.inputs:
        name = tensor.op.name
        if tensor.op.type == "PlaceholderWithDefault" and tensor.dtype.base_dtype == tf.bool:
            constants[name] = True
        elif name != DROPOUT_STEP:
            feeds[name] = targets.get(name, _static_shape(tensor))
    return TrainingGraph(
        graph=loss.graph,
        feeds=feeds,
        constants=constants,
        loss=loss.op.name,
        train=[function.updates_op.name],
        gradients=gradients,
        loss_scale=loss_scale.op.name,
        finite=None if finite is None else finite.op.name,
        layers=layers_of(model),
        model=model,
    )


def _static_shape(tensor: Any) -> List[Optional[int]]:
    return [] if tensor.shape.rank is None else list(tensor.shape.as_list())


def _target_shapes(model: Any) -> Dict[str, List[Optional[int]]]:
    """Return placeholder name -> shape of the target, as output and loss determine it.

    Keras' placeholder for a target has the rank of the output, but no sizes.
    """
    shapes = {}
    for endpoint in getattr(model, "_training_endpoints", ()):
        target = endpoint.training_target.target
        if target is None:
            continue
        shape = endpoint.feed_output_shape or endpoint.shape
        if endpoint.feed_output_shape is None and "sparse" in getattr(endpoint.loss_fn, "name", ""):
            shape = (*endpoint.shape[:-1], 1)
        shapes[target.op.name] = list(shape)
    return shapes


def _dense_name(gradient: Any) -> str:
    """Add an Identity that reads a gradient's values; return the Identity's name.

    The pass does not convert fetched nodes. So the Identity is fetched, not the node that computes
    the gradient.
    """
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    with values.graph.as_default():
        return tf.identity(values, name="rehearsal/gradient").op.name


def layers_of(model: Any) -> Dict[str, Any]:
    """Return name -> layer, also of nested models."""
    layers: Dict[str, Any] = {}
    stack = [] if model is None else [model]
    while stack:
        for layer in stack.pop().layers:
            if isinstance(layer, keras.models.Model):
                stack.append(layer)
            else:
                layers[layer.name] = layer
    return layers
