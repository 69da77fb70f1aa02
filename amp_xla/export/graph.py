"""Rebuilds the models of TensorFlow recipes for export, in float32 and without dropout."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.model import LARGE, Exportable, Run, comparable, read_head
from amp_xla.models import dropout, encoders
from amp_xla.models.weights import google
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.step import restore_weights

NAMES = {"Input-Token": "token_ids", "Input-Segment": "segment_ids"}  # of bert4keras' inputs


class Parts(NamedTuple):
    """A model built in TensorFlow's current graph.

    Attributes:
      outputs, answers: tensors by name; see ``model.comparable`` and ``Exportable``.
      head: variables outside the transformer, by Hugging Face's names; a ``weight`` is [in, out].
      weights: variables to restore from a checkpoint.
    """

    transformer: Any
    outputs: Dict[str, Any]
    head: Dict[str, Any]
    weights: Sequence[Any] = ()
    answers: Mapping[str, Any] = {}


Build = Callable[[Optional[str]], Parts]  # builds a model; see ``with_weights``


class Serving(NamedTuple):
    """A graph whose weights are constants; inputs (ids are int32 [B, L]) and outputs by name."""

    graph: Any
    inputs: Dict[str, Any]
    outputs: Dict[str, Any]


def exportable(
    checkpoint: Checkpoint, build: Build, length: int, labels: Sequence[str] = (), **others: Any
) -> Exportable:
    """Return a recipe's model with the weights of a checkpoint; see ``with_weights``."""

    def restored(folder: Optional[str]) -> Parts:
        parts = build(folder)
        if folder is None:
            restore_weights(checkpoint, parts.weights)
        return parts

    config = google.pretrained(str(checkpoint.path)).config
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    others["labels"] = tuple(labels)
    return with_weights(restored, config, tokenizer, length, **others)


def with_weights(
    build: Build, config: Dict[str, Any], tokenizer: Tokenizer, length: int, **others: Any
) -> Exportable:
    """Return the model that ``build`` builds, as an ``Exportable``.

    Args:
      build: function that builds the model. Its argument is a folder of weights, as for ``--bert``;
        None = the trained weights.
      config, tokenizer, length, **others: as in ``Exportable``.
    """
    parts = _built(build, None)
    config["layer_norm_eps"] = encoders.epsilon(parts.transformer)
    head = dict(zip(parts.head, K.batch_get_value(list(parts.head.values()))))
    numbers = backend.session().run(list(parts.answers.values()))

    def reload(folder: Path) -> Run:
        K.clear_session()
        with contextlib.redirect_stderr(io.StringIO()):  # the reader calls the head not used
            again = _built(build, str(folder))
        stored_head = read_head(folder) if again.head else {}
        K.batch_set_value(
            [(v, _transposed(name, stored_head[name])) for name, v in again.head.items()]
        )
        return running(again)

    return Exportable(
        config=config, tokenizer=tokenizer, length=length,
        tensors=encoders.values(parts.transformer, config["vocab_size"]),
        head={name: _transposed(name, value) for name, value in head.items()},
        run=running(parts), reload=reload, graph=lambda half: serving(parts, half),
        answers={name: value.tolist() for name, value in zip(parts.answers, numbers)}, **others,
    )  # fmt: skip


def _built(build: Build, folder: Optional[str]) -> Parts:
    with dropout.inference():
        return build(folder)


def names_of(model: Any) -> List[str]:
    """Return the exported model's input names, in the order of the Keras model's inputs."""
    return [NAMES.get(name, name) for name in model.input_names]


def _transposed(name: str, value: np.ndarray) -> np.ndarray:
    return value.T if name.endswith(".weight") else value


def running(parts: Parts) -> Run:
    """Return the function that computes a model's outputs."""
    run = backend.session().make_callable(parts.outputs, list(parts.transformer.model.inputs))
    return lambda *inputs: comparable(run(*inputs))


def serving(parts: Parts, half: bool) -> Serving:
    """Return the model's graph with weights as constants; ``half`` stores large ones in float16."""
    session, model = backend.session(), parts.transformer.model
    ends = [tensor.op.name for tensor in parts.outputs.values()]
    frozen = tf.graph_util.convert_variables_to_constants(
        session, session.graph.as_graph_def(), ends
    )
    for node in frozen.node:
        node.attr.pop("_gradient_op_type", None)  # a Python function, which other programs lack
        node.attr.pop("_class", None)  # places beside variables, which are gone
    with tf.Graph().as_default() as graph:
        inputs = {}
        for name, tensor in zip(names_of(model), model.inputs):
            dtype = tf.int32 if name in NAMES.values() else tensor.dtype
            inputs[name] = tf.placeholder(dtype, tensor.shape, name)
        replaced = {t.name: tf.cast(i, t.dtype) for t, i in zip(model.inputs, inputs.values())}
        if half:
            replaced.update(_in_half(frozen))
        imported = tf.import_graph_def(
            frozen, replaced, [tensor.name for tensor in parts.outputs.values()], name="model"
        )
        outputs = {name: tf.identity(t, name) for name, t in zip(parts.outputs, imported)}
    return Serving(graph, inputs, outputs)


def _in_half(frozen: Any) -> Dict[str, Any]:
    """Remove large float32 constants; return tensor name -> float16 constant cast to float32."""
    casts = {}
    for node in [node for node in frozen.node if node.op == "Const"]:
        value = tf.make_ndarray(node.attr["value"].tensor)
        if value.dtype == np.float32 and value.size >= LARGE:
            casts[f"{node.name}:0"] = tf.cast(tf.constant(value.astype(np.float16)), tf.float32)
            frozen.node.remove(node)
    return casts
