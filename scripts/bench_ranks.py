"""What several ranks cost: measured here, or on paper for 8 and 8 x 8 GPUs; printed.

    make bench-ranks                            # measured, two processes on this machine
    make bench-ranks ARGS=--paper               # against published throughput, and beyond it

The recipe's own flags come behind `--`.

Measured: classification, the same global batch by one process, by one rank under horovodrun and by
two ranks; and by two processes that share nothing and have half the batch each, at the same time:
what two ranks take longer than those is the price of sharing.

On paper, milliseconds of a step of n GPUs that have the same batch each:

    t(n) = t(1) + update x (1/a(n) - 1/a(1)) + k x ring(n) / a(n)
    ring(n) = 2 (n - 1) / n x bytes / bandwidth

t(1) is the published row of one GPU, a(n) the steps that accumulate for one update and reduction.
The bandwidth is what a GPU sends over NVLink on paper; between machines, if less, that of all of a
machine's network cards, because the rings of all its GPUs cross them. k is the one fitted constant:
how many times the ideal ring's time a step is longer. It stands for what is hidden, for the share
of the peak that is reached and for waiting for the slowest, which the table cannot tell apart. It
is the median over the SQuAD rows of 4 GPUs; all other rows of several GPUs check it.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import parse, split_words, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code

_ROOT = Path(__file__).resolve().parents[1]

# BERT-large training, TensorFlow 1.15, sequences a second: from the tables of
# NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT/README.md, container 20.06-py3.
PUBLISHED = Path(__file__).with_name("published_throughput.csv")
WITHIN = 0.15
# 24 layers of hidden size 1024, 30522 tokens, 512 positions: the encoder's, without its heads.
_PARAMETERS = 24 * (12 * 1024**2 + 13 * 1024) + (30522 + 512 + 2 + 2) * 1024
# Dense float32 is reduced: optimization.py there, sparse_as_dense=True, Compression.none.
_BYTES = 4
# Adam reads gradient, weight and two moments, and writes the latter three.
_UPDATE_BYTES = 7 * 4


class System(NamedTuple):
    """GB/s on paper, from NVIDIA's data sheets of DGX-1 and DGX A100.

    nvlink: one GPU, one direction: 6 links of 25 (V100), 12 of 25 (A100). memory: one GPU.
    network: one machine: 4 InfiniBand cards of 100 Gbit/s, 8 of 200 Gbit/s.
    """

    nvlink: float
    memory: float
    network: float


SYSTEMS = {"V100": System(150, 900, 50), "A100": System(300, 1555, 200)}


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure what several ranks cost. After `--`: the recipe's flags."""

    paper: bool = False
    """measure nothing: compute published and larger configurations, print the errors"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """paired measurements"""
    batch_size: Annotated[int, within(at_least=2)] = 16
    """global batch; even"""


def main() -> int:
    """Prints the tables."""
    own, words = split_words(None)
    config = parse(Config, own, "python -m scripts.bench_ranks")
    return paper() if config.paper else measured(config, words)


# -- on paper --------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A published configuration."""

    task: str
    gpu: str
    gpus: int
    length: int
    batch: int
    accumulation: int
    precision: str
    rate: float

    @property
    def milliseconds(self) -> float:
        """Of one batch of each GPU."""
        return self.gpus * self.batch / self.rate * 1e3

    @property
    def kind(self) -> Tuple[Any, ...]:
        """What it shares with the row of one GPU."""
        return self.task, self.gpu, self.length, self.batch, self.precision

    def __str__(self) -> str:
        return f"{self.task:<9}{self.length:>4} {self.gpu:<10} {self.precision:<5}{self.batch:>3}"


def published() -> List[Row]:
    """The table."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Row(task, gpu, int(gpus), int(length), int(batch), int(steps), precision, float(rate))
        for task, gpu, gpus, length, batch, steps, precision, rate in rows
    ]


def ring(gpu: str, gpus: int, bytes_each: int = _BYTES) -> float:
    """Milliseconds in which ideal rings sum the gradients; a machine has 8 GPUs at most."""
    system = SYSTEMS[gpu.split()[0]]
    bandwidth = system.nvlink if gpus <= 8 else min(system.nvlink, system.network)
    return 2 * (gpus - 1) / gpus * _PARAMETERS * bytes_each / (bandwidth * 1e6)


def update(gpu: str) -> float:
    """Milliseconds of an update, at the memory's bandwidth."""
    return _PARAMETERS * _UPDATE_BYTES / (SYSTEMS[gpu.split()[0]].memory * 1e6)


def fitted(rows: Sequence[Row], one: Dict[Any, Row]) -> float:
    """k, of rows that reduce in each step."""
    return statistics.median(
        (row.milliseconds - one[row.kind].milliseconds) / ring(row.gpu, row.gpus) for row in rows
    )


def predicted(
    alone: Row, gpus: int, accumulation: int, k: float, bytes_each: int = _BYTES
) -> float:
    """Sequences a second."""
    update_now = update(alone.gpu) * (1 / accumulation - 1 / alone.accumulation)
    reduction = k * ring(alone.gpu, gpus, bytes_each) / accumulation
    return gpus * alone.batch / (alone.milliseconds + update_now + reduction) * 1e3


def paper() -> int:
    """Published rows with their errors, then 8 and 8 x 8 GPUs."""
    rows = published()
    one = {row.kind: row for row in rows if row.gpus == 1}
    several = [row for row in rows if row.gpus > 1]
    fit = [row for row in several if row.task == "squad" and row.gpus == 4]
    k = fitted(fit, one)
    print(f"{_PARAMETERS / 1e6:.0f} million parameters; k = {k:.2f}, the median of {len(fit)} rows")
    print("\nsequences/s             batch x GPUs  published  predicted  error  linear is off by")
    missed = []
    for row in several:
        rate = predicted(one[row.kind], row.gpus, row.accumulation, k)
        error, linear = (found / row.rate - 1 for found in (rate, one[row.kind].rate * row.gpus))
        note = "  fitted" if row in fit else ""
        if abs(error) > WITHIN:
            missed.append(row)
            note += "  MISSED"
        print(
            f"{row!s} x {row.gpus:<3} {row.rate:>9.1f} {rate:>10.1f}"
            f" {error:>+6.0%} {linear:>+6.0%}{note}"
        )
    groups = {
        "fitted": fit,
        "other rows of 4 GPUs": [row for row in several if row.gpus == 4 and row not in fit],
        "rows of 8 GPUs": [row for row in several if row.gpus == 8],
        "rows of several machines": [row for row in several if row.gpus > 8],
    }
    for name, found in groups.items():
        good = len(found) - sum(row in missed for row in found)
        print(f"{name}: {good} of {len(found)} within {WITHIN:.0%}")
    _beyond(one, rows, k)
    return 0


def _beyond(one: Dict[Any, Row], rows: Sequence[Row], k: float) -> None:
    print(
        "\nsequences/s, and share of linear           8 GPUs      8, fp16 sums        8 x 8 GPUs"
        "   8 x 8, fp16 sums"
    )
    for row in rows:
        if row.gpus != 8:
            continue
        alone, cells = one[row.kind], []
        for machines in (1, 8):
            gpus = 8 * machines
            accumulation = max(1, row.accumulation // machines)
            for size in (_BYTES, 2):
                rate = predicted(alone, gpus, accumulation, k, size)
                cells.append(f"{rate:>9.0f} ({rate / alone.rate / gpus:.0%})")
        print(f"{row!s} " + "  ".join(f"{cell:>16}" for cell in cells))


# -- measured --------------------------------------------------------------------------------------

ONE, UNDER, HALVES = "1 process", "1 rank, horovodrun", "2 processes, half each"
TWO, TWO_HALF = "2 ranks", "2 ranks, --reduce fp16"
_RECIPE = ["--precision", "fp32", "--no-packed", "--epochs", "1", "--train-fraction", "0.6"]


def measured(config: Config, more: List[str]) -> int:
    """Milliseconds a step for each way; differences by pairs; bytes."""
    if config.batch_size % 2:
        raise AmpXlaError(f"batch size {config.batch_size} is odd; two ranks halve it")
    starter = Path(sys.executable).with_name("horovodrun")
    if not starter.exists():
        raise AmpXlaError(f"{starter} is missing; `make train NP=2` builds Horovod")
    words = [*_RECIPE, "--log-every", "10", *more]
    alone = [sys.executable, "-m", "recipes.classification", *words]
    ranks = [sys.executable, "-m", "amp_xla", "ranks", "--np", "2", "--", *words]
    under = [str(starter), "--gloo", "-np", "1", "-H", "localhost:1", *alone]
    whole, half = (["--batch-size", str(config.batch_size // of)] for of in (1, 2))
    ways = {
        ONE: [[*alone, *whole]],
        UNDER: [[*under, *whole]],
        HALVES: [[*alone, *half], [*alone, *half]],
        TWO: [[*ranks, *whole, "--reduce", "none"]],
        TWO_HALF: [[*ranks, *whole, "--reduce", "fp16"]],
    }
    found: Dict[str, List[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(config.rounds):
            for way, commands in ways.items():
                found[way].append(_together(commands, folder, f"{number}-{len(found[way])}-{way}"))
                print(f"round {number + 1}: {way} {found[way][-1]:.1f} ms", file=sys.stderr)
    _report(config, found)
    _bytes([*words, *whole])
    return 0


def _together(commands: List[List[str]], folder: str, name: str) -> float:
    """Median milliseconds of a step of commands that run at the same time."""
    names = [f"{name}-{i}".replace(" ", "-").replace(",", "") for i in range(len(commands))]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    logs = [Path(folder, f"{one}.txt") for one in names]
    started = []
    for command, one, log in zip(commands, names, logs):
        with log.open("wb") as out:
            started.append(
                subprocess.Popen(
                    [*command, "--name", one],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
    for process, log in zip(started, logs):
        if process.wait():
            tail = log.read_text(errors="replace").splitlines()[-5:]
            raise AmpXlaError(f"a training ended with {process.returncode}: {'; '.join(tail)}")
    runs = [Path(folder, "runs", "classification", one, "metrics.jsonl") for one in names]
    return statistics.mean(_milliseconds(run) for run in runs)


def _milliseconds(metrics: Path) -> float:
    """Median over windows of some steps; the first is left out."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines = [line for line in lines if "samples_per_second" in line]
    if len(lines) < 2:
        raise AmpXlaError("a training had fewer than 20 steps; give it more data")
    return statistics.median(
        (b["samples"] - a["samples"]) / (b["step"] - a["step"]) / b["samples_per_second"] * 1e3
        for a, b in zip(lines, lines[1:])
    )


def _report(config: Config, found: Dict[str, List[float]]) -> None:
    print(f"{config.rounds} rounds, global batch {config.batch_size}; milliseconds a step")
    for way, values in found.items():
        print(f"{way:<50} {_spread(values)}")
    print("differences by pairs, milliseconds, and share of the first one's step")
    for first, second in ((UNDER, ONE), (TWO, ONE), (TWO, HALVES), (TWO_HALF, HALVES)):
        pairs = list(zip(found[first], found[second]))
        share = statistics.median((a - b) / a for a, b in pairs)
        name = f"{first} - {second}"
        print(f"{name:<50} {_spread([a - b for a, b in pairs])}, {share:.0%}")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):7.1f} (min {min(values):.1f}, max {max(values):.1f})"


def _bytes(words: List[str]) -> None:
    """What two ranks reduce in a step, from variables' sizes and tokens' counts."""
    from recipes import classification

    job = classification.build(parse(classification.Config, words))
    from amp_xla.backend import kind, tensorflow, tf

    weights = job.model.trainable_weights
    gradients = tf.gradients(tf.reduce_sum(job.model.output), weights)
    rows = {"Embedding-Token": "token_ids", "Embedding-Segment": "segment_ids"}
    dense, tables = 0, []
    for weight, gradient in zip(weights, gradients):
        shape = weight.shape.as_list()
        if isinstance(gradient, tf.IndexedSlices):
            tables.append((rows[weight.name.split("/")[0]], shape))
        else:
            dense += int(np.prod(shape))
    feeds = list(job.batches.epoch(0))
    print(f"TensorFlow {tensorflow().__version__} ({kind()}); reduced a step, two ranks:")
    for name, size in (("none", 4), ("fp16", 2)):
        seen = [sum(_rows(feed[key], shape, size) for key, shape in tables) for feed in feeds]
        whole = sum(int(np.prod(shape)) for _, shape in tables) * size
        print(
            f"--reduce {name}: {dense * size / 1e6:.2f} MB dense, and both ranks' embedding rows "
            f"{statistics.mean(seen) / 1e6:.2f} MB (mean of {len(seen)} batches; whole tables: "
            f"{whole / 1e6:.2f} MB)"
        )


def _rows(ids: Any, shape: Sequence[int], size: int) -> float:
    """Bytes of a table's rows, or of the whole table, as ``Reduction`` chooses."""
    height, width = shape
    count = sum(len(np.unique(part)) for part in np.array_split(ids, 2))
    gathered = count * (width * 4 + 8)
    return gathered if gathered < 2 * height * width * size else height * width * size


if __name__ == "__main__":
    sys.exit(exit_code(main))
