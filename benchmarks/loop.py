"""What does the training loop cost over calling the step in a bare ``for``?

    python -m benchmarks.loop --rounds 5

Trains the same tiny model in turn: as ``amp-xla train`` does (progress, metrics, TensorBoard) and
with ``amp_xla.speed.child``, which only makes batches and calls the step. In a small model the
difference is larger than the noise.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Sequence

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code
from amp_xla.speed.child import Request
from amp_xla.speed.machine import clean_environment
from amp_xla.speed.measure import Child
from benchmarks import harness

TINY = ("--layers", "1", "--hidden", "64", "--max-length", "32", "--shapes", "1",
        "--batch-size", "8")  # fmt: skip
TIMEOUT = 600.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the cost of the training loop."""

    steps: Annotated[int, within(at_least=1)] = 300
    """timed steps of the bare call"""
    rounds: Annotated[int, within(at_least=1)] = 5
    """paired measurements"""
    out: str = "runs/loop"
    """where to write .json and .md"""


@dataclasses.dataclass
class Way:
    """Milliseconds per step, one value per round."""

    milliseconds: List[float] = dataclasses.field(default_factory=list)


def main() -> int:
    """Print milliseconds per step of both ways, and the difference."""
    config = parse(Config, prog="python -m benchmarks.loop")
    ways = {"loop": Way(), "bare": Way(), "difference": Way()}
    for number in range(config.rounds):
        harness.say(f"round {number + 1} of {config.rounds} ...")
        looped, bare = trained(), called(config.steps)
        for name, value in zip(ways, (looped, bare, looped - bare)):
            ways[name].milliseconds.append(value)
    harness.write(config.out, "benchmarks.loop", config, ways, render(ways))
    return 0


def trained(words: Sequence[str] = TINY) -> float:
    """Train for an epoch; return the median of its milliseconds per step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "amp_xla", "train", "classification", "--", *words]
        done = subprocess.run(
            [*command, "--epochs", "1", "--log-every", "50", "--name", "bench"],
            cwd=folder,
            env=clean_environment(),
            capture_output=True,
        )
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise AmpXlaError(f"the training ended with {done.returncode}: {last}")
        metrics = Path(folder, "runs", "classification", "bench", "metrics.jsonl")
        return statistics.median(harness.step_milliseconds(metrics))


def called(steps: int, words: Sequence[str] = TINY) -> float:
    """Return the median milliseconds of the bare step."""
    child = Child.of(Request("classification", tuple(words)))
    try:
        child.answer(TIMEOUT)
        child.ask(TIMEOUT, do="warm")
        return 1e3 * statistics.median(child.ask(TIMEOUT, do="steps", steps=steps)["seconds"])
    finally:
        child.close()


def render(ways: Dict[str, Way]) -> str:
    """Return one line per way: median, minimum and maximum."""
    return "\n".join(
        f"{name:<12}{statistics.median(way.milliseconds):8.3f} ms per step "
        f"(min {min(way.milliseconds):.3f}, max {max(way.milliseconds):.3f})"
        for name, way in ways.items()
    )


if __name__ == "__main__":
    sys.exit(exit_code(main))
