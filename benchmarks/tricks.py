"""What does a trick of fine-tuning cost? Steps of ``classification`` with and without it, in turn.

python -m benchmarks.tricks --rounds 8
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Dict, List

from typing_extensions import Annotated, Literal

from amp_xla.config import parse, within
from amp_xla.process.exits import exit_code
from amp_xla.speed.child import Request
from benchmarks import harness

TRICKS = ("--fgm 1", "--r-drop 4", "--ema 0.99", "--layer-decay 0.9")


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure the cost of the tricks."""

    layers: Annotated[int, within(at_least=1)] = 3
    """transformer layers"""
    hidden: Annotated[int, within(at_least=8)] = 192
    """hidden size"""
    batch_size: Annotated[int, within(at_least=1)] = 32
    """texts per step"""
    precision: Literal["fp32", "amp"] = "amp"
    """as for the recipe"""
    steps: Annotated[int, within(at_least=1)] = 8
    """timed steps per round"""
    rounds: Annotated[int, within(at_least=1)] = 4
    """rounds per contestant"""
    only: str = ""
    """tricks whose name contains one of these, separated by semicolons; none = all"""
    out: str = "runs/tricks"
    """where to write .json and .md"""


def main() -> int:
    """Measure, print the table and write the record."""
    config = parse(Config, prog="python -m benchmarks.tricks")
    words = [f"--{n}={getattr(config, n)}" for n in ("layers", "hidden")]
    words += [f"--batch-size={config.batch_size}", "--shapes=1"]
    commands: Dict[str, List[str]] = {}
    for trick in ["", *(t for t in TRICKS if harness.named(t, config.only))]:
        request = Request("classification", (*words, *trick.split()), config.precision)
        commands[trick or "none"] = [
            sys.executable, "-m", "benchmarks.recipe_side",
            json.dumps(dataclasses.asdict(request)),
        ]  # fmt: skip
    results = harness.alternate(commands, config.rounds, config.steps, 3600.0)
    harness.write(config.out, "benchmarks.tricks", config, results, harness.render(results))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
