"""What do two ranks cost on this machine?

    python -m benchmarks.ranks -- --layers 2

Classification with the same global batch on one process and on two ranks, and two independent
processes with half the batch each: the difference to those is the price of the reductions. Flags of
the recipe come after ``--``.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

from typing_extensions import Annotated

from amp_xla.config import parse, split_words, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.exits import exit_code
from amp_xla.speed.machine import clean_environment
from benchmarks import harness

JOB = ["--precision", "fp32", "--epochs", "1", "--train-fraction", "0.6", "--log-every", "10"]
ONE, HALVES, TWO, TWO_HALF = "1 process", "2 processes, half each", "2 ranks", "2 ranks, fp16 sums"


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the cost of two ranks. After `--`: the recipe's flags."""

    rounds: Annotated[int, within(at_least=1)] = 3
    """paired measurements"""
    batch_size: Annotated[int, within(at_least=2)] = 16
    """global batch, even"""
    out: str = "runs/ranks"
    """where to write .json and .md"""


@dataclasses.dataclass
class Way:
    """Milliseconds per step, one value per round."""

    milliseconds: List[float] = dataclasses.field(default_factory=list)


def main() -> int:
    """Print milliseconds per step for each way, and the differences."""
    own, words = split_words(None)
    config = parse(Config, own, "python -m benchmarks.ranks")
    if config.batch_size % 2:
        raise AmpXlaError(f"--batch-size {config.batch_size} is odd; allowed: even numbers")
    program = [sys.executable, "-m", "amp_xla"]
    whole = [*JOB, *words, "--batch-size", str(config.batch_size)]
    half = [*JOB, *words, "--batch-size", str(config.batch_size // 2)]
    alone, ranks = [*program, "train", "--"], [*program, "ranks", "--np", "2", "--"]
    commands = {
        ONE: [[*alone, *whole]],
        HALVES: [[*alone, *half], [*alone, *half]],
        TWO: [[*ranks, *whole, "--reduce", "none"]],
        TWO_HALF: [[*ranks, *whole, "--reduce", "fp16"]],
    }
    ways = {name: Way() for name in commands}
    for number in range(config.rounds):
        order = list(commands) if number % 2 == 0 else list(reversed(list(commands)))
        for name in order:
            ways[name].milliseconds.append(together(commands[name]))
            harness.say(f"round {number + 1}: {name} {ways[name].milliseconds[-1]:.1f} ms")
    harness.write(config.out, "benchmarks.ranks", config, ways, render(ways))
    return 0


def together(commands: List[List[str]]) -> float:
    """Run commands at the same time; return the mean of their median milliseconds per step."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for number, command in enumerate(commands):
            with Path(folder, f"{number}.txt").open("wb") as log:
                process = subprocess.Popen(
                    [*command, "--name", str(number)],
                    cwd=folder,
                    env=clean_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            processes.append(process)
        for number, process in enumerate(processes):
            if process.wait():
                tail = Path(folder, f"{number}.txt").read_text(errors="replace").splitlines()[-5:]
                raise AmpXlaError(f"a training ended with {process.returncode}: {'; '.join(tail)}")
        runs = Path(folder, "runs", "classification")
        return statistics.mean(
            statistics.median(harness.step_milliseconds(runs / str(number) / "metrics.jsonl"))
            for number in range(len(commands))
        )


def render(ways: Dict[str, Way]) -> str:
    """Return medians, and differences by pairs with their share of the first one's step."""
    lines = [f"{name:<44}{spread(way.milliseconds)}" for name, way in ways.items()]
    for first, second in ((TWO, ONE), (TWO, HALVES), (TWO_HALF, HALVES)):
        pairs = list(zip(ways[first].milliseconds, ways[second].milliseconds))
        share = statistics.median((a - b) / a for a, b in pairs)
        lines.append(f"{f'{first} - {second}':<44}{spread([a - b for a, b in pairs])}, {share:.0%}")
    return "\n".join(lines)


def spread(values: List[float]) -> str:
    """Return median, minimum and maximum in milliseconds."""
    return f"{statistics.median(values):7.1f} ms (min {min(values):.1f}, max {max(values):.1f})"


if __name__ == "__main__":
    sys.exit(exit_code(main))
