"""Published training speeds and memory as rows for ``benchmarks.plan_fit``.

The figures are in ``benchmarks/published``, each with its source. Their models are not built here:
their work follows from layers, hidden size and length.
"""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from amp_xla.speed.plan.forecast import Mode, Product, Traffic, Work
from amp_xla.speed.plan.gpus import GPUS, Gpu
from benchmarks import ROOT
from benchmarks.gpu import read
from benchmarks.gpu_rows import CONTESTANTS, NAMES, SHAPES, gpu_named
from benchmarks.masked_lm import MASKED_SHARE

PUBLISHED = ROOT / "benchmarks" / "published"
# Layers, hidden size, vocabulary; heads are 64 wide.
MODELS = {
    "bert-base": (12, 768, 30522), "bert-large": (24, 1024, 30522),
    "electra-base": (12, 768, 30522), "electra-base-disc": (12, 768, 30522),
    "roberta-base": (12, 768, 50265), "roberta-large": (24, 1024, 50265),
    "distilbert-base": (6, 768, 30522), "distilroberta-base": (6, 768, 50265),
}  # fmt: skip
PREDICTIONS = {128: 20, 512: 80}  # masked tokens of NVIDIA's pretraining, per length
# Bytes per layer, after the pass and in float32, counted in a graph of bert4keras: per token and
# hidden element; per head and pair of tokens; and outside layers per token and hidden element.
UNFUSED = (Traffic(1203, 1438), Traffic(71, 94), 330)
FUSED = (Traffic(339, 501), Traffic(36, 39), 81)
KEPT = (108, 4.7, 16)


class Row(NamedTuple):
    """A published or measured training speed; ``seconds`` per micro-batch."""

    source: str
    program: str
    model: str
    task: str
    gpu: Gpu
    mode: Mode
    length: int
    batch: int
    work: Work
    seconds: float

    @property
    def tensorflow(self) -> bool:
        return self.program in ("tensorflow", "nvidia_pretraining", "official")

    @property
    def folder(self) -> str:
        """The machine or page that rows of one measurement share."""
        return re.sub(r"/(README.md:|results.csv:|[^/]+/[^/]+:)?[^/]*$", "", self.source)

    @property
    def framework(self) -> str:
        return "TensorFlow" if self.tensorflow else f"PyTorch ({self.program})"


class MemoryRow(NamedTuple):
    """A batch that fits or does not fit."""

    source: str
    mode: Mode
    gib: float
    work: Work
    fits: bool


def layers(
    count: int, hidden: int, batch: int, length: int
) -> Tuple[List[Product], List[Tuple[float, float]]]:
    """Return the products and (tokens x hidden, heads x pairs) of transformer layers."""
    heads, tokens = hidden // 64, batch * length
    shapes = [
        (4, tokens, hidden, hidden),
        (1, tokens, hidden, 4 * hidden), (1, tokens, 4 * hidden, hidden),
        (heads * batch, length, 64, length), (heads * batch, length, length, 64),
    ]  # fmt: skip
    units = (float(tokens * hidden), float(heads * batch * length**2))
    return [product(count * n, m, k, o) for n, m, k, o in shapes], [units] * count


def product(count: int, rows: int, inner: int, columns: int) -> Product:
    """Return a forward product and the two of its derivative."""
    elements = rows * inner + inner * columns + rows * columns
    return Product(6.0 * count * rows * inner * columns, 3.0 * count * elements, True)


def work(model: str, batch: int, length: int, predictions: int, fused_kernels: bool) -> Work:
    """Return the work of a published model.

    Args:
      predictions: predicted tokens per row; 0 for fine-tuning.
      fused_kernels: True for PyTorch, whose layer norm, softmax and casts are single kernels, so
        that half precision halves their bytes.
    """
    count, hidden, vocabulary = MODELS[model]
    products, units = layers(count, hidden, batch, length)
    parameters, variables = 12 * count * hidden**2 + (vocabulary + 512) * hidden, 16 * count
    if model == "electra-base":  # the generator
        more, small = layers(count, 256, batch, length)
        products, units = products + more, units + small
        parameters, variables = parameters + 12 * count * 256**2, 2 * variables
    if predictions:
        products.append(product(1, batch * predictions, hidden, hidden))
        products.append(product(1, batch * predictions, hidden, vocabulary))

    def traffic(rates: Any) -> Traffic:
        outside = rates[2] * batch * length * hidden
        amp, full = (
            sum(a * rates[0][i] + b * rates[1][i] for a, b in units) + outside for i in range(2)
        )
        return Traffic(full / 2 if fused_kernels else amp, full)

    kept = sum(a * KEPT[0] + b * KEPT[1] for a, b in units) + KEPT[2] * batch * length * hidden
    kept += 8.0 * batch * predictions * vocabulary
    return Work(
        batch, products, traffic(UNFUSED), traffic(FUSED), kept, float(parameters), variables
    )


def published() -> List[Row]:
    """Return the published rows."""
    lines = (PUBLISHED / "rows.csv").read_text(encoding="utf-8").splitlines()
    return [_row(raw) for raw in csv.DictReader(lines)]


def _row(raw: Dict[str, str]) -> Row:
    framework, batch, length = raw["framework"], int(raw["batch"]), int(raw["seq"])
    program = "tensorflow"
    if framework.startswith("PyTorch"):
        program = "autocast" if "optimizer not in it" in raw["note"] else "apex"
    elif raw["task"] == "pretrain" or framework.startswith("TF1"):
        program = "official" if "official" in framework else "nvidia_pretraining"
    # 16 V100 in one DGX-2.
    per_machine = 16 if "ELECTRA" in raw["source"] else 8
    accumulation = re.match(r"acc=(\d+)", raw["note"])
    gpus = int(raw["gpus"])
    mode = Mode(
        raw["precision"],
        raw["xla"] == "1",
        gpus,
        int(accumulation[1]) if accumulation else 1,
        per_machine,
    )
    size = work(
        raw["model"], batch, length, int(raw["predictions"]), program in ("apex", "autocast")
    )
    return Row(
        f"{raw['source']} ({framework})", program, raw["model"], raw["task"],
        GPUS[NAMES[raw["gpu"]]], mode, length, batch, size,
        batch * gpus / float(raw["samples_per_s"]),
    )  # fmt: skip


def measured(record: Path) -> Iterator[Row]:
    """Yield this project's rows of a record of ``benchmarks.gpu``, if its GPU is known."""
    for row in read(record.with_suffix("")).values():
        contestant, shape = CONTESTANTS[row.contestant], SHAPES.get(row.shape)
        if contestant.side != "ours" or not row.seconds or shape is None:
            continue
        known = gpu_named(row.machine["card"])
        if known is not None and contestant.xla in ("off", "on"):
            model = "bert-large" if shape["layers"] == 24 else "bert-base"
            length = shape["max_length"]
            size = work(model, row.batch, length, round(MASKED_SHARE * length), False)
            mode = Mode(contestant.precision, contestant.xla == "on")
            seconds = statistics.median(row.seconds)
            yield Row(f"benchmarks.gpu, {row.date}", "tensorflow", model, "masked_lm", known, mode,
                      length, row.batch, size, seconds)  # fmt: skip


def memory_rows() -> Iterator[MemoryRow]:
    """Yield the published batches that fit or do not fit."""
    for raw in csv.DictReader((PUBLISHED / "memory.csv").read_text().splitlines()):
        length, pretraining = int(raw["seq"]), raw["task"] == "pretrain"
        predictions = PREDICTIONS.get(length, 0) if pretraining else 0
        accumulates = pretraining and "NGC 20.06" in raw["framework"]
        yield MemoryRow(
            f"{raw['source']}: {raw['model']} {raw['batch']} x {length} {raw['precision']}",
            Mode(raw["precision"], raw["xla"] == "1", 1, 2 if accumulates else 1),
            float(raw["memory_gb"]),
            work(raw["model"], int(raw["batch"]), length, predictions, False),
            raw["fits"] == "1",
        )
