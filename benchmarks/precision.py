"""What do accuracy, time and memory look like in the three engines and all precisions?

    python -m benchmarks.precision

Each row is a run of a recipe: classification (graph rewrite), keras_classification (Keras policy),
jax_classification (JAX policy), on the same texts, sizes, order and seed, in the environments under
.venvs/, on the CPU. The rewrite has no float16 there; ``rehearse`` models it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code
from amp_xla.speed import table
from benchmarks import harness

RECIPES = {
    "rewrite": "classification",
    "rehearsed": "classification",
    "Keras policy": "keras_classification",
    "JAX policy": "jax_classification",
}
RUNTIMES = {"rewrite": ("tf1", "tf2"), "JAX policy": ("jax",)}
FLOAT16 = {
    "Keras policy": "--policy mixed_float16",
    "JAX policy": "--policy p=f32,c=f16,o=f32",
    "rehearsed": "",
}
FLAGS: Dict[str, Dict[str, str]] = {
    "fp32": {
        "rewrite": "--precision fp32",
        "Keras policy": "--policy float32",
        "JAX policy": "--policy p=f32,c=f32,o=f32",
    },
    "bf16": {
        "rewrite": "--precision amp",
        "Keras policy": "--policy mixed_bfloat16",
        "JAX policy": "--policy p=f32,c=bf16,o=f32",
    },
    "fp16, scale 1000": {way: f"{flags} --loss-scale 1000" for way, flags in FLOAT16.items()},
    "fp16, dynamic": {way: f"{flags} --loss-scale dynamic" for way, flags in FLOAT16.items()},
}
HEAD = ("way", "runtime", "precision", "result", "ms per step", "skipped", "memory, GiB", "seconds")


@dataclasses.dataclass(frozen=True)
class Config:
    """Train one job in each engine and precision."""

    job: str = "--epochs 3 --batch-size 32 --shapes 1"
    """flags for all recipes"""
    only: str = ""
    """rows whose name contains one of these, separated by semicolons (default: all)"""
    minutes: Annotated[float, within(above=0)] = 30.0
    """time limit per run; a stopped run is reported up to there"""
    rehearse: Annotated[int, within(at_least=1)] = 260
    """steps to rehearse"""
    out: str = "runs/precision"
    """where to write .json and .md"""


class Row(NamedTuple):
    """One engine, runtime and precision."""

    way: str
    runtime: str
    precision: str

    def command(self, config: Config, python: str) -> List[str]:
        """Return the command that runs it in an empty folder."""
        words = shlex.split(f"{config.job} {FLAGS[self.precision][self.way]}")
        program = [python, "-m", "amp_xla"]
        if self.way == "rehearsed":
            steps = ["--steps", str(config.rehearse), "--out", "."]
            return [*program, "rehearse", "classification", *steps, "--", *words]
        # Keras' float16 steps take seconds on a CPU: log each, in case the time is up.
        every = "1" if self.way == "Keras policy" and "fp16" in self.precision else "10"
        words += ["--name", "bench", "--log-every", every]
        return [*program, "train", RECIPES[self.way], "--", *words]


@dataclasses.dataclass
class Measured:
    """The result of one row."""

    result: str
    milliseconds: Optional[float]
    skipped: int
    memory_gib: float
    seconds: float


def main() -> int:
    """Run the rows, print the table and write the record."""
    config = parse(Config, prog="python -m benchmarks.precision")
    results: Dict[str, Measured] = {}
    body = []
    for precision, ways in FLAGS.items():
        for way in ways:
            for runtime in RUNTIMES.get(way, ("tf2",)):
                row = Row(way, runtime, precision)
                # TensorFlow 1.15 has no bfloat16 on a CPU.
                if (runtime, precision) == ("tf1", "bf16") or not harness.named(
                    " ".join(row), config.only
                ):
                    continue
                harness.say(f"{' '.join(row)} ...")
                measured = results[" ".join(row)] = run(row, config)
                milliseconds = measured.milliseconds
                body.append([
                    *row, measured.result, f"{milliseconds:.0f}" if milliseconds else "-",
                    str(measured.skipped), f"{measured.memory_gib:.2f}", f"{measured.seconds:.0f}",
                ])  # fmt: skip
    text = table.markdown(HEAD, body)
    harness.write(config.out, "benchmarks.precision", config, results, text)
    return 0


def run(row: Row, config: Config) -> Measured:
    """Run a row in an empty folder; it is killed after ``config.minutes``."""
    python = harness.ROOT / ".venvs" / row.runtime / "bin" / "python"
    if not python.exists():
        return Measured(f"no environment: ./amp-xla env --runtime {row.runtime}", None, 0, 0, 0)
    variables = {"PYTHONPATH": str(harness.ROOT), "AMP_XLA_DEVICE": "cpu", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        began = time.monotonic()
        process = subprocess.Popen(
            row.command(config, str(python)),
            cwd=folder,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        timer = threading.Timer(60 * config.minutes, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)  # unlike wait(), returns the resource usage
        timer.cancel()
        process.returncode = status
        memory, seconds = usage.ru_maxrss / 2**20, time.monotonic() - began
        rehearsal = Path(folder, "rehearsal.json")
        if rehearsal.exists():
            steps = json.loads(rehearsal.read_text())["steps"]
            last = steps[-max(1, len(steps) // 10) :]
            half = statistics.mean(float(step["half_loss"]) for step in last)
            full = statistics.mean(float(step["float32_loss"]) for step in last)
            result = f"{len(steps)} steps: loss {half:.4f}, float32 {full:.4f}"
            skipped = sum(not step["finite"] for step in steps)
            return Measured(result, None, skipped, memory, seconds)
        metrics = Path(folder, "runs", RECIPES[row.way], "bench", "metrics.jsonl")
        text = metrics.read_text() if metrics.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        if not any("samples_per_second" in line for line in lines):
            output.seek(0)
            harness.say(output.read().decode(errors="replace")[-2000:])
            return Measured(f"failed, status {status}", None, 0, memory, seconds)
        accuracies = [line["dev_accuracy"] for line in lines if "dev_accuracy" in line]
        stopped = f"stopped after step {lines[-1]['step']}"
        result = f"dev accuracy {max(accuracies):.4f}" if accuracies else stopped
        skipped = max(line.get("skipped_steps", 0) for line in lines)
        milliseconds = statistics.median(harness.step_milliseconds(metrics) or [0.0])
        return Measured(result, milliseconds, skipped, memory, seconds)


if __name__ == "__main__":
    sys.exit(exit_code(main))
