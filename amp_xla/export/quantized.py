"""ONNX models with int8 weights; comparison of their answers and speed with float32."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from amp_xla.data.text.readers import Dataset
from amp_xla.errors import AmpXlaError
from amp_xla.export import onnx_model
from amp_xla.export.model import Exportable
from amp_xla.process import json_files
from amp_xla.training.evaluation import in_order

REPORT = "export.json"
_LEAST = 0.98  # of the answers, which must equal those of float32
_ROWS = 32  # texts per batch


def quantize(model: Exportable, folder: Path, dev: Dataset, accept: bool) -> str:
    """Store the weights of ``model.onnx`` in int8, with a scale per channel.

    Args:
      folder: has the float32 ``model.onnx``, which is replaced; gets ``export.json``.
      dev: texts on which the answers are compared.
      accept: whether to accept an agreement that is too low.

    Returns:
      A line with agreement, largest difference, speed and size.

    Raises:
      AmpXlaError: too few answers equal those in float32, and ``accept`` is False.
    """
    small = folder / onnx_model.FILE
    kernels = onnx_model.package("onnxruntime.quantization")
    with tempfile.TemporaryDirectory(dir=str(folder)) as scratch:  # onnxruntime leaves files there
        whole = Path(scratch, "fp32.onnx")
        small.rename(whole)
        logging.getLogger().setLevel(logging.ERROR)  # advice about its own options
        # 7 bits: with 8, sums overflow on CPUs without VNNI.
        kernels.quantize_dynamic(
            whole, small, per_channel=True, reduce_range=True, weight_type=kernels.QuantType.QInt8
        )
        compared = _compared(model, [whole, small], dev)
    same, difference = compared["agreement"], compared["largest_difference"]
    line = (
        f"{same:.2%} of the answers to the {compared['texts']:,} dev texts equal those in float32, "
        f"the largest difference is {difference:.2g}"
    )
    if same < _LEAST and not accept:
        raise AmpXlaError(
            f"--dtype int8: {line}. At least {_LEAST:.0%} must be equal, so nothing was written; "
            "--accept-accuracy writes it"
        )
    (folder / REPORT).write_bytes(json_files.encode(compared))
    speeds, sizes = zip(*((x["texts_per_second"], x["megabytes"]) for x in compared["files"]))
    return f"{line}; {speeds[1]} texts/s (fp32: {speeds[0]}), {sizes[1]} MB ({sizes[0]})"


def _compared(model: Exportable, files: List[Path], dev: Dataset) -> Dict[str, Any]:
    """Run the models in ``files``, float32 and int8; return the content of ``export.json``.

    The agreement is, for classes, the share that is equal; for sets of labels and for spans, the
    mean F1; for vectors, the mean cosine; for similarities, 1 minus the mean difference.
    """
    runs = [onnx_model.load(path.parent, path.name) for path in files]
    example, _ = (run(*model.samples()) for run in runs)  # the first call opens the file
    alone = example.ndim == 2 and not model.labels and dev.pairs is not None  # vectors of texts
    one_of_several = example.ndim > 1 and np.allclose(example.sum(-1), 1.0, atol=1e-3)
    texts = [*dev.texts, *(dev.pairs or [])] if alone else dev.texts
    encoded = model.tokenizer.encode(texts, None if alone else dev.pairs, model.length)
    seconds, differences = [0.0, 0.0], [0.0]

    def infer(batch: Dict[str, np.ndarray]) -> Any:
        ids, outputs = batch["token_ids"], []
        for number, run in enumerate(runs):
            start = time.perf_counter()
            outputs.append(run(ids, batch["segment_ids"]))
            seconds[number] += time.perf_counter() - start
        a, b, real = *outputs, ids > 0
        differences.append(
            float(np.abs((a - b)[real if one_of_several and a.ndim > 2 else real[:, 0]]).max())
        )
        if a.ndim == 1:
            return 1 - np.abs(a - b) / np.maximum(1.0, np.abs(a))
        if a.ndim == 2 and not model.labels:
            return (a * b).sum(1)
        if one_of_several:
            same = a.argmax(-1) == b.argmax(-1)
            return same if a.ndim == 2 else (same & real).sum(1) / np.maximum(real.sum(1), 1)
        a, b = (x.reshape(len(x), -1) > 0.5 for x in (a, b))
        total = a.sum(1) + b.sum(1)
        return np.where(total, 2 * (a & b).sum(1) / np.maximum(total, 1), 1.0)

    answers = in_order(encoded, model.length, _ROWS, infer)
    return {
        "texts": len(texts), "agreement": float(np.mean(answers)),
        "largest_difference": max(differences),
        "onnxruntime": onnx_model.package("onnxruntime").__version__,
        "files": [
            {"dtype": dtype, "texts_per_second": round(len(texts) / spent, 1),
             "megabytes": round(path.stat().st_size / 1e6, 2)}
            for dtype, spent, path in zip(("fp32", "int8"), seconds, files)
        ],
    }  # fmt: skip
