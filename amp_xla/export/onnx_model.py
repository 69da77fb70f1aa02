"""ONNX, through tf2onnx."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import Any, List

import numpy as np

from amp_xla.data.text.unpacked import extra
from amp_xla.errors import UnsupportedError
from amp_xla.export.model import LARGE, Exportable, Run, comparable
from amp_xla.models.weights import first_line

FILE = "model.onnx"
_OPSET = 13
# onnxruntime from 1.11 on needs a newer numpy than TensorFlow 1.15; newer onnx, a newer protobuf.
PACKAGES = (
    "tf2onnx==1.16.1 onnx==1.14.1 onnxruntime==1.10.0"
    if sys.version_info < (3, 10)
    else "tf2onnx==1.17.0 onnx==1.17.0 onnxruntime"
)
package = functools.partial(extra, use="--format onnx", packages=PACKAGES)


def write(model: Exportable, folder: Path, dtype: str) -> None:
    """Write the model and the tokenizer into a new folder.

    Raises:
      DataError: a package is missing.
    """
    onnx, convert = package("onnx"), package("tf2onnx.convert")
    package("onnxruntime")
    assert model.graph is not None
    serving = model.graph(False)
    ends = [serving.inputs, serving.outputs]
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    # tf2onnx 1.17 merges two Reshapes even if the second copies sizes from the result of the first.
    package("tf2onnx.optimizer")._optimizers.pop("remove_back_to_back", None)
    proto, _ = convert.from_graph_def(
        serving.graph.as_graph_def(), name="model", opset=_OPSET,
        input_names=[tensor.name for tensor in serving.inputs.values()],
        output_names=[tensor.name for tensor in serving.outputs.values()],
        tensors_to_rename={t.name: name for side in ends for name, t in side.items()},
    )  # fmt: skip
    folder.mkdir()
    if dtype == "fp16":
        _halve(onnx, proto.graph)
    onnx.save_model(proto, str(folder / FILE))
    model.write_files(folder)


def load(folder: Path, name: str = FILE) -> Run:
    """Return a function that runs the model in the file ``name``; its first call opens the file."""
    runtime, path, providers = package("onnxruntime"), folder / name, ["CPUExecutionProvider"]
    session = functools.lru_cache()(
        lambda: runtime.InferenceSession(str(path), providers=providers)
    )

    def run(*inputs: np.ndarray) -> np.ndarray:
        try:
            outputs = session().run(
                None, dict(zip((x.name for x in session().get_inputs()), inputs))
            )
        except Exception as error:  # ONNX Runtime has its own exception classes
            raise UnsupportedError(
                f"--format onnx: ONNX Runtime cannot run the model ({first_line(error)}); allowed: "
                "hf, savedmodel, google"
            ) from None
        return comparable(dict(zip((x.name for x in session().get_outputs()), outputs)))

    return run


def describe(model: Exportable, folder: Path) -> List[str]:
    """Return lines that explain how to load the folder."""
    return [f'load: onnxruntime.InferenceSession("{folder / FILE}")', model.call]


def _halve(onnx: Any, graph: Any) -> None:
    """Store large float32 weights in float16, each followed by a cast."""
    casts = []
    for weight in graph.initializer:
        value = onnx.numpy_helper.to_array(weight)
        if value.dtype != np.float32 or value.size < LARGE:
            continue
        name = weight.name
        half = onnx.numpy_helper.from_array(value.astype(np.float16), f"{name}/half")
        weight.CopyFrom(half)
        to = onnx.TensorProto.FLOAT
        casts.append(onnx.helper.make_node("Cast", [half.name], [name], to=to))
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts, *nodes])
