"""Training graphs of recipes' steps and of compiled Keras models, described in one form."""

from __future__ import annotations

import dataclasses
import re
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.errors import UnsupportedError

# Placeholders. The two step numbers (int64) seed dropout masks: in copies of a graph, and in the
# graph itself (``callbacks.Run``). The gradient seed (float32) is d loss / d loss.
SEED_STEP = "amp_xla_rehearsal_step"
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

    Attributes:
      graph: tf.Graph.
      feeds: placeholder op name -> static shape, None for an unknown dimension; in feeding order.
      constants: op name -> value of the placeholders that get the same value in every step, such as
        the learning phase.
      loss: op name of the float32 loss, unscaled.
      train: op names of the update.
      gradients: (variable name, tensor name of the unscaled gradient) for each trained variable
        that has a gradient; for an IndexedSlices, the name of its ``values``.
      loss_scale: tensor name of the current loss scale; None if there is none.
      finite: tensor name of a boolean that is false if the update is skipped; None if updates are
        never skipped.
      layers: Keras layers by name, including those of nested models.
      inputs: names in ``feeds`` whose arrays must have the shapes in ``feeds``. A Keras model's
        targets are not included, because Keras also accepts targets of other shapes.
    """

    graph: Any
    feeds: Mapping[str, Sequence[Optional[int]]]
    constants: Mapping[str, Any]
    loss: str
    train: Sequence[str]
    gradients: Sequence[Tuple[str, str]]
    loss_scale: Optional[str]
    finite: Optional[str]
    layers: Mapping[str, Any]
    inputs: Sequence[str] = ()

    @property
    def fetches(self) -> List[str]:
        """Op names that a training step runs: the update and the loss."""
        return [*self.train, self.loss]

    @property
    def ends(self) -> List[str]:
        """Op names of the loss and the gradients."""
        return [self.loss, *(op_of(tensor) for _, tensor in self.gradients)]

    def arrays(self, batch: Sequence[Any]) -> List[np.ndarray]:
        """Return the arrays of a batch in feeding order, in the shapes that Keras' ``fit`` feeds.

        Args:
          batch: arrays in feeding order; or inputs and targets as for ``fit``, each an array, a
            list, a dictionary by name, or None for no array.

        Raises:
          UnsupportedError: the number of arrays or the shape of one does not fit the placeholders.
        """
        arrays: List[Any] = []
        for part in batch:
            if isinstance(part, dict):
                arrays += self._in_order(part)
            elif isinstance(part, (list, tuple)) and isinstance(part[0], np.ndarray):
                arrays += part
            elif part is not None:
                arrays.append(part)
        if len(arrays) != len(self.feeds):
            raise UnsupportedError(
                f"{len(arrays)} arrays for {len(self.feeds)} placeholders; needed, in this order: "
                f"{', '.join(self.feeds)}"
            )
        columns = [len(shape) == 2 for shape in self.feeds.values()]
        arrays = [
            np.asarray(array)[:, None] if column and np.ndim(array) == 1 else np.asarray(array)
            for array, column in zip(arrays, columns)
        ]
        self._check_shapes([array.shape for array in arrays])
        return arrays

    def _in_order(self, arrays: Mapping[str, Any]) -> List[Any]:
        places = {name: place for place, name in enumerate(self.feeds)}
        placed = {}
        for name, array in arrays.items():
            place = places.get(name, places.get(f"{name}_target"))
            if place is None:
                raise UnsupportedError(f"no placeholder {name!r}; allowed: {', '.join(self.feeds)}")
            placed[place] = array
        return [placed[place] for place in sorted(placed)]

    def _check_shapes(self, shapes: Sequence[Tuple[int, ...]]) -> None:
        for name, shape in zip(self.feeds, shapes):
            needed = list(self.feeds[name])
            fits = len(shape) == len(needed) and all(n in (None, d) for n, d in zip(needed, shape))
            if name in self.inputs and not fits:
                raise UnsupportedError(
                    f"the array for {name} has shape {list(shape)}; needed: {needed}, where None "
                    f"is any size"
                )
        rows = {shape[0] for shape in shapes if shape}
        if self.inputs and len(rows) > 1:
            raise UnsupportedError(
                f"the arrays of a batch have different numbers of rows: "
                f"{', '.join(map(str, sorted(rows)))}; needed: the same number in all arrays"
            )

    def export(self, fetches: Sequence[str]) -> Any:
        """Return the GraphDef that computes ``fetches``, with repeatable random numbers.

        Stateful random operations become functions of their name and the step fed to
        ``SEED_STEP``, so that two copies draw the same dropout masks. The seed of the backward
        pass becomes the placeholder ``GRADIENT_SEED``, which scales all gradients.
        """
        # Leaves out everything that the fetches do not need, such as evaluation graphs.
        graph_def = tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), list(fetches))
        out = tf.GraphDef()
        out.library.CopyFrom(graph_def.library)
        out.versions.CopyFrom(graph_def.versions)
        for node in graph_def.node:
            if node.op in _STATELESS:
                _make_stateless(node, out)
            elif node.op == "Const" and _GRADIENT_SEED.search(node.name):
                node.op, node.input[:] = "Identity", [GRADIENT_SEED]
                node.attr["T"].type = tf.float32.as_datatype_enum
                del node.attr["dtype"], node.attr["value"]
            node.attr.pop("_class", None)
        out.node.extend(graph_def.node)
        _add_placeholder(out, GRADIENT_SEED, tf.float32)
        _add_placeholder(out, SEED_STEP, tf.int64)
        return out

    def values(self) -> Dict[str, Any]:
        """Return variable op name -> value for all initialized variables."""
        with self.graph.as_default():
            K.get_session()  # initializes Keras' variables
            session, variables = backend.session(), tf.global_variables()
            flags = session.run([tf.is_variable_initialized(v) for v in variables])
            ready = [v for v, flag in zip(variables, flags) if flag]
            return {v.op.name: x for v, x in zip(ready, session.run(ready))}


def _add_placeholder(graph_def: Any, name: str, dtype: Any) -> None:
    node = graph_def.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["shape"].shape.SetInParent()


def _constant(graph_def: Any, name: str, value: Any) -> str:
    node = graph_def.node.add(name=name, op="Const")
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return name


def _make_stateless(node: Any, graph_def: Any) -> None:
    """Turn e.g. RandomUniform into StatelessRandomUniform seeded by (name, SEED_STEP)."""
    seed = graph_def.node.add(name=node.name + "/amp_xla_seed", op="Pack")
    crc = np.array(zlib.crc32(node.name.encode()), np.int64)
    seed.input.extend([_constant(graph_def, seed.name + "/layer", crc), SEED_STEP])
    seed.attr["N"].i = 2
    seed.attr["T"].type = tf.int64.as_datatype_enum
    node.op = _STATELESS[node.op]
    controls = [text for text in node.input if text.startswith("^")]
    node.input[:] = [node.input[0], seed.name, *controls]
    for name in ("seed", "seed2"):
        node.attr.pop(name, None)
    node.attr["Tseed"].type = tf.int64.as_datatype_enum


def view(model: Any) -> TrainingGraph:
    """Return the training graph of a ``Job``, a ``TrainStep`` or a compiled Keras model."""
    if isinstance(model, keras.models.Model):
        return from_model(model)
    return from_step(getattr(model, "step", model), getattr(model, "model", None))


def from_step(step: Any, model: Any = None) -> TrainingGraph:
    """Return the training graph of a ``TrainStep``; ``model`` has the layers."""
    names = {id(v): v.op.name for v in step.variables}
    return TrainingGraph(
        graph=step.loss.graph,
        feeds={tensor.op.name: _static_shape(tensor) for tensor in step._inputs},
        constants={},
        loss=step.loss.op.name,
        train=[step.train_op.name],
        gradients=[(names[id(v)], _dense_name(g)) for g, v in step.gradients if g is not None],
        loss_scale=step.optimizer.loss_scale.name,
        finite=step.optimizer.gradients_finite.name,
        layers=_layers(model),
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
    # Only amp_xla's LossScaleOptimizer has this attribute.
    finite = getattr(optimizer, "gradients_finite", None)
    variables = list(model.trainable_weights)
    with loss.graph.as_default(), tf.name_scope("rehearsal"):
        scale = None if finite is None else tf.identity(optimizer.loss_scale, "loss_scale")
        # The gradients inside the optimizer's update are out of reach, so a second backward pass
        # is built. It runs only if gradients are fetched.
        scaled = loss if scale is None else loss * scale
        pairs = []
        for gradient, variable in zip(tf.gradients(scaled, variables), variables):
            if gradient is not None:
                pairs.append((variable.op.name, _dense_name(gradient, scale)))
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
        gradients=pairs,
        loss_scale=None if scale is None else scale.name,
        finite=None if finite is None else finite.name,
        layers=_layers(model),
        inputs=[name for name in feeds if name not in targets],
    )


def op_of(tensor: str) -> str:
    """Return the name of the operation that makes a tensor."""
    return tensor.split(":")[0]


def _static_shape(tensor: Any) -> List[Optional[int]]:
    return [] if tensor.shape.rank is None else list(tensor.shape.as_list())


def _target_shapes(model: Any) -> Dict[str, List[Optional[int]]]:
    """Return placeholder name -> shape of the target, which depends on output and loss.

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


def _dense_name(gradient: Any, scale: Any = None) -> str:
    """Divide a gradient's values by ``scale``, add an Identity, and return its tensor name.

    The pass does not convert fetched nodes. So the Identity is fetched, not the node that computes
    the gradient.
    """
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    with values.graph.as_default():
        values = values if scale is None else values / scale
        return tf.identity(values, name="rehearsal/gradient").name


def _layers(model: Any) -> Dict[str, Any]:
    layers: Dict[str, Any] = {}
    stack = [] if model is None else [model]
    while stack:
        for layer in stack.pop().layers:
            if isinstance(layer, keras.models.Model):
                stack.append(layer)
            else:
                layers[layer.name] = layer
    return layers
