"""One view of a training graph, whoever built it: a recipe's step or a compiled Keras model."""

from __future__ import annotations

import dataclasses
import re
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.errors import UnsupportedError

SEED_STEP = "amp_xla_rehearsal_step"  # placeholder: int64 scalar, the step number for masks
GRADIENT_SEED = "amp_xla_gradient_seed"  # placeholder: float32 scalar, d loss / d loss
# tf.gradients' own names, on 1.15 and on 2.x, of the constant that starts the backward pass.
_GRADIENT_SEED = re.compile(r"(^|/)grad_ys_\d+(/Const)?$")
_STATELESS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}


@dataclasses.dataclass(frozen=True)
class TrainingGraph:
    """What rehearsing and inspecting need to know of a training graph.

    Attributes:
      graph: tf.Graph.
      feeds: placeholder op names, in the order in which ``values_of`` gives arrays.
      constants: op name -> value of what is always fed the same (the learning phase).
      loss: op name of the float32 loss, unscaled.
      train: op names of the update.
      gradients: (variable name, tensor name) for each trained variable that has a gradient;
        the values of an IndexedSlices.
      loss_scale: tensor name of the loss scale in force, or None where there is none.
      unscaled: whether ``gradients`` were divided by it.
      finite: tensor name of a boolean, false where the update was skipped for a non-finite
        gradient; None where nothing is skipped.
      layers: Keras layers by name, nested models opened.
      variables: all variables of the graph.
    """

    graph: Any
    feeds: Sequence[str]
    constants: Mapping[str, Any]
    loss: str
    train: Sequence[str]
    gradients: Sequence[Tuple[str, str]]
    loss_scale: Optional[str]
    unscaled: bool
    finite: Optional[str]
    layers: Mapping[str, Any]
    variables: Sequence[Any]

    @property
    def fetches(self) -> List[str]:
        """Op names of what training runs: the update and the loss."""
        return [*self.train, self.loss]

    def export(self, fetches: Sequence[str]) -> Any:
        """The part of the graph behind ``fetches``, made repeatable.

        Stateful random operations become functions of (their name, the step fed to
        ``SEED_STEP``), so that two copies of the graph draw the same dropout masks; the seed of
        the backward pass becomes the placeholder ``GRADIENT_SEED``, so that gradients can be
        scaled without touching the graph.

        Args:
          fetches: op names.
        """
        # Extracting by name leaves out what the fetches don't need, evaluation graphs above all.
        graph_def = tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), list(fetches))
        out = tf.GraphDef()
        out.library.CopyFrom(graph_def.library)
        out.versions.CopyFrom(graph_def.versions)
        random = [n.name for n in graph_def.node if n.op in _STATELESS]
        seeds = [n.name for n in graph_def.node if _starts_backward(n)]
        for node in graph_def.node:
            if node.name in random:
                _make_stateless(node, out)
            elif node.name in seeds:
                del node.attr["value"]
                node.op, node.input[:] = "Identity", [GRADIENT_SEED]
                node.attr["T"].type = node.attr["dtype"].type
                del node.attr["dtype"]
            node.attr.pop("_class", None)
        out.node.extend(graph_def.node)
        _add_placeholder(out, GRADIENT_SEED, tf.float32)
        _add_placeholder(out, SEED_STEP, tf.int64)
        return out

    def values(self, session: Any) -> Dict[str, Any]:
        """Variable op name -> its value now, for every variable that has one."""
        with self.graph.as_default():
            flags = session.run([tf.is_variable_initialized(v) for v in self.variables])
            ready = [v for v, flag in zip(self.variables, flags) if flag]
            return {v.op.name: x for v, x in zip(ready, session.run(ready))}


def _starts_backward(node: Any) -> bool:
    return node.op == "Const" and _GRADIENT_SEED.search(node.name) is not None


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
    """Turns e.g. RandomUniform into StatelessRandomUniform seeded by (name, SEED_STEP)."""
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
    """The view of a ``Job``, a ``TrainStep`` or a compiled Keras model."""
    step = getattr(model, "step", None)
    if step is not None and hasattr(step, "train_op"):
        return from_step(step, model.model)
    return from_step(model) if hasattr(model, "train_op") else from_model(model)


def from_step(step: Any, model: Any = None) -> TrainingGraph:
    """The view of an ``amp_xla.training.step.TrainStep``.

    Args:
      step: the step.
      model: Keras model whose layers it trains, to name nodes after.
    """
    graph = step.loss.graph
    names = {id(v): v.op.name for v in step.variables}
    return TrainingGraph(
        graph=graph,
        feeds=[t.op.name for t in step._inputs],
        constants={},
        loss=step.loss.op.name,
        train=[_op_name(step.train_op)],
        gradients=[(names[id(v)], _dense_name(g)) for g, v in step.gradients if g is not None],
        loss_scale=step.optimizer.loss_scale.name,
        unscaled=True,
        finite=step.optimizer.gradients_finite.name,
        layers=_layers(model),
        variables=_variables(graph),
    )


def from_model(model: Any) -> TrainingGraph:
    """The view of a compiled Keras model, whose training function is built if it is not there.

    Raises:
      UnsupportedError: the model is not compiled.
    """
    if getattr(model, "optimizer", None) is None or not hasattr(model, "total_loss"):
        raise UnsupportedError(
            f"model {getattr(model, 'name', model)!r} is not compiled, so it has no training "
            f"graph; call model.compile(loss=..., optimizer=...) first"
        )
    model._make_train_function()
    function, loss = model.train_function, model.total_loss
    variables = list(model.trainable_weights)
    with loss.graph.as_default(), tf.name_scope("rehearsal"):
        # The optimizer's own gradients are out of reach (inside its update), so a second
        # backward pass is built; it is only run, or rewritten, where gradients are asked for.
        gradients = tf.gradients(loss, variables)
        loss = tf.identity(loss, "loss")
        pairs = [(v.op.name, _dense_name(g)) for g, v in zip(gradients, variables) if g is not None]
    placeholders, constants = [], {}
    for tensor in function.inputs:
        if tensor.op.type == "PlaceholderWithDefault" and tensor.dtype.base_dtype == tf.bool:
            constants[tensor.op.name] = True
        else:
            placeholders.append(tensor.op.name)
    return TrainingGraph(
        graph=loss.graph,
        feeds=placeholders,
        constants=constants,
        loss=loss.op.name,
        train=[_op_name(function.updates_op)],
        gradients=pairs,
        loss_scale=None,
        unscaled=False,
        finite=None,
        layers=_layers(model),
        variables=_variables(loss.graph),
    )


def _op_name(operation: Any) -> str:
    return operation.op.name if hasattr(operation, "op") else operation.name


def _dense_name(gradient: Any) -> str:
    """Tensor name, behind an Identity: what is fetched keeps its dtype, and the node that makes
    the gradient must be free to become half."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    with values.graph.as_default():
        return tf.identity(values, name="rehearsal/gradient").name


def _variables(graph: Any) -> List[Any]:
    with graph.as_default():
        return list(tf.global_variables())


def _layers(model: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    stack = [] if model is None else [model]
    while stack:
        for layer in stack.pop().layers:
            if isinstance(layer, keras.models.Model):
                stack.append(layer)
            else:
                found[layer.name] = layer
    return found


def session_of(graph: Any) -> Any:
    """The session that holds the graph's variables: Keras'."""
    with graph.as_default():
        K.get_session()
        return backend.session()


def placeholder_shapes(training: TrainingGraph, arrays: Sequence[Any]) -> Dict[str, List[int]]:
    """Placeholder op name -> the shape it is fed with."""
    return {name: list(np.shape(array)) for name, array in zip(training.feeds, arrays)}
