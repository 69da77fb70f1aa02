"""One small job in three ways of mixed precision, side by side: a Markdown table.

    make bench-precision

Every row is a process of its own: recipes/classification.py (bert4keras and the graph rewrite),
keras_classification.py (Keras' policy), jax_classification.py (JAX), all on the same texts, sizes,
order and seed. They run one after the other, on the CPU (GPUs: ``make bench-gpu``), each in its own
environment under .venvs/. The rewrite has no float16 there: ``make rehearse`` trains a model of it.
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
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code
from amp_xla.process.progress import note
from scripts.environment.installed import distributions, runtime_of, tensorflow_version

ROOT = Path(__file__).resolve().parents[1]
JOB = "--epochs 3 --batch-size 32 --shapes 1"
RECIPES = {
    "rewrite": "classification",
    "rehearsed": "classification",
    "Keras policy": "keras_classification",
    "JAX policy": "jax_classification",
}
# Precision -> the flags that ask for it, way by way.
HALF = {
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
    "fp16, scale 1000": {way: f"{flags} --loss-scale 1000" for way, flags in HALF.items()},
    "fp16, dynamic": {way: f"{flags} --loss-scale dynamic" for way, flags in HALF.items()},
}
HEAD = (
    "| way | runtime | precision | dev accuracy | ms a step | memory, GiB | skipped "
    "| seconds, all in all | of the processor |"
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Train one job in every way and precision; print what came out as a table."""

    job: str = JOB
    """flags that all recipes get"""
    only: str = ""
    """parts of the names of the rows to run, between semicolons; none = all"""
    xla: bool = False
    """compile TensorFlow's rows too (--xla on), as JAX always does"""
    minutes: Annotated[float, within(above=0)] = 30.0
    """until a run is stopped; what it did until then is its row"""
    rehearse: Annotated[int, within(at_least=1)] = 260
    """steps that are rehearsed"""


class Row(NamedTuple):
    """What is run, and in which environment."""

    way: str
    runtime: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.way} {self.runtime} {self.precision}"

    def command(self, config: Config, python: str, folder: Path) -> List[str]:
        words = shlex.split(f"{config.job} {FLAGS[self.precision][self.way]}")
        if config.xla and self.way in ("rewrite", "Keras policy"):
            words += ["--xla", "on"]
        if self.way == "rehearsed":
            steps = ["--steps", str(config.rehearse), "--out", str(folder)]
            return [python, "-m", "amp_xla", "rehearse", *steps, "--", *words]
        # So that steps of seconds, as Keras' in float16 on a CPU, are seen before the time is up.
        every = "1" if self.way == "Keras policy" and "fp16" in self.precision else "10"
        recipe = f"recipes.{RECIPES[self.way]}"
        return [python, "-m", recipe, *words, "--name", "bench", "--log-every", every]


def rows(config: Config) -> List[Row]:
    """All that there can be, or those asked for."""
    runtimes = {"rewrite": ("tf1", "tf2"), "rehearsed": ("tf2",), "Keras policy": ("tf2",)}
    found = [
        Row(way, runtime, precision)
        for precision, ways in FLAGS.items()
        for way in RECIPES
        if way in ways
        for runtime in runtimes.get(way, ("jax",))
        if (runtime, precision) != ("tf1", "bf16")  # 1.15 has none
    ]
    asked = [part.strip() for part in config.only.split(";")]
    return [row for row in found if any(part in row.name for part in asked)]


def main(argv: Optional[List[str]] = None) -> int:
    """The command."""
    config = parse(Config, argv, "python -m scripts.bench_precision")
    print(f"{config.job}{' --xla on' * config.xla}\n\n{HEAD}\n{'|---' * HEAD.count(' | ')}|---|")
    for row in rows(config):
        python = python_of(row.runtime)
        if python is None:
            cells = [f"no environment: make env RUNTIME={row.runtime}", "", "", "", "", ""]
        else:
            note(f"{row.name} ...")
            with tempfile.TemporaryDirectory() as folder:
                cells = measured(row, config, python, Path(folder))
        print(f"| {' | '.join([*row, *cells])} |", flush=True)
    return 0


def python_of(runtime: str) -> Optional[str]:
    """The Python that runs this where it is one of ``runtime``; else that of its environment."""
    installed = distributions(sys.executable)
    tensorflow = tensorflow_version(sys.executable, installed)
    if runtime == (runtime_of(tensorflow) if tensorflow else "jax"):
        return sys.executable
    python = ROOT / ".venvs" / runtime / "bin" / "python"
    return str(python) if python.exists() else None


def measured(row: Row, config: Config, python: str, folder: Path) -> List[str]:
    """Runs a row; its cells."""
    command = row.command(config, python, folder)
    code, seconds, used = run(command, folder, 60 * config.minutes)
    memory = f"{used.ru_maxrss / 2**20:.2f}"
    took = [f"{seconds:.0f}", f"{used.ru_utime + used.ru_stime:.0f}"]
    try:
        if row.way == "rehearsed":
            found = json.loads((folder / "rehearsal.json").read_text())
            return [*rehearsed(found), memory, str(not_finite(found)), *took]
        path = folder / "runs" / RECIPES[row.way] / "bench" / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError:
        lines = []
    steps = [line for line in lines if "skipped_steps" in line]
    if not steps:
        print((folder / "output.txt").read_text()[-2000:], file=sys.stderr)
        return [f"exit status {code}", "", memory, "", *took]
    best = max((line["dev_accuracy"] for line in lines if "dev_accuracy" in line), default=None)
    accuracy = f"stopped after step {steps[-1]['step']}" if best is None else f"{best:.4f}"
    skipped = str(steps[-1]["skipped_steps"])
    return [accuracy, f"{milliseconds(steps):.0f}", memory, skipped, *took]


def run(command: List[str], folder: Path, limit: float) -> Tuple[int, float, Any]:
    """Exit status, seconds, and what a process used; it is ended after ``limit`` seconds."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AMP_XLA_DEVICE": "cpu", "JAX_PLATFORMS": "cpu"}
    began = time.monotonic()
    with open(folder / "output.txt", "w") as output:
        process = subprocess.Popen(
            command, cwd=str(folder), env=env, stdout=output, stderr=subprocess.STDOUT
        )
        clock = threading.Timer(limit, process.kill)  # a stop that is asked for takes a step more
        clock.start()
        try:
            # Not process.wait(): it does not say what the process used.
            _, status, used = os.wait4(process.pid, 0)
        finally:
            clock.cancel()
    process.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    return process.returncode, time.monotonic() - began, used


def milliseconds(steps: List[Dict[str, Any]]) -> float:
    """A step's, between two log lines, the median; evaluation and checkpoints are not in it."""
    pairs = list(zip(steps, steps[1:])) or [({"step": 0, "samples": 0}, steps[0])]
    return 1e3 * statistics.median(
        (b["samples"] - a["samples"]) / b["samples_per_second"] / (b["step"] - a["step"])
        for a, b in pairs
    )


def rehearsed(found: Dict[str, Any]) -> List[str]:
    """Of a rehearsal: both losses, the mean of the last tenth of its steps; no time, it models."""
    last = found["steps"][-max(1, len(found["steps"]) // 10) :]
    half, plain = (
        statistics.mean(float(step[key]) for step in last) for key in ("half_loss", "float32_loss")
    )
    return [f"{len(found['steps'])} steps: loss {half:.4f}, float32 {plain:.4f}", ""]


def not_finite(found: Dict[str, Any]) -> int:
    """Steps that training would have skipped; the first ends a rehearsal."""
    return sum(not step["finite"] for step in found["steps"])


if __name__ == "__main__":
    sys.exit(exit_code(main))
