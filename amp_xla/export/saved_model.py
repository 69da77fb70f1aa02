"""TensorFlow SavedModels for TensorFlow Serving."""

from __future__ import annotations

from pathlib import Path
from typing import List

from amp_xla.backend import tf
from amp_xla.export.model import Exportable, Run, comparable

LOAD = 'load: tf.saved_model.load("{}").signatures["serving_default"]  # TensorFlow 2'


def write(model: Exportable, folder: Path, dtype: str) -> None:
    """Write the model and the tokenizer into a new folder."""
    assert model.graph is not None
    serving = model.graph(dtype == "fp16")
    with tf.Session(graph=serving.graph) as session:
        tf.saved_model.simple_save(session, str(folder), serving.inputs, serving.outputs)
    model.write_files(folder)


def load(folder: Path) -> Run:
    """Return a function that runs the written model in a session."""
    graph = tf.Graph()
    with graph.as_default():
        session = tf.Session(graph=graph)
        loaded = tf.saved_model.loader.load(session, ["serve"], str(folder))
        signature = loaded.signature_def["serving_default"]
        outputs = {name: graph.get_tensor_by_name(x.name) for name, x in signature.outputs.items()}
        order = [operation.name for operation in graph.get_operations()]
        fed = [graph.get_tensor_by_name(x.name) for x in signature.inputs.values()]
        fed.sort(key=lambda tensor: order.index(tensor.op.name))
    run = session.make_callable(outputs, fed)
    return lambda *inputs: comparable(run(*inputs))


def describe(model: Exportable, folder: Path) -> List[str]:
    """Return lines that explain how to load the folder."""
    return [LOAD.format(folder), model.call]
