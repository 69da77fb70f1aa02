"""The command ``tune``: which precision and XLA mode train a recipe fastest on this machine.

    amp-xla tune classification -- --batch-size 64

Flags after ``--`` belong to the recipe. It prints a table and the flags to train with.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Sequence

from typing_extensions import Annotated

from amp_xla.config import flat, parse, split_words, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.speed import machine, table
from amp_xla.speed.child import Request
from amp_xla.speed.measure import Outcome, measure
from amp_xla.training.options import precision_options
from amp_xla.training.recipe import find_recipe

CPU_MINUTES = 5.0
TIMEOUT = 900.0  # maximum seconds per process


@dataclasses.dataclass(frozen=True)
class Config:
    """Measure each precision and XLA mode of this machine. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """name of a recipe, or path of its file"""
    steps: Annotated[int, within(at_least=1)] = 8
    """timed steps per round"""
    rounds: Annotated[int, within(at_least=2)] = 3
    """rounds per combination; differences within the spread of the rounds are ignored"""
    minutes: Annotated[Optional[float], within(at_least=0)] = None
    """maximum minutes for all rounds, 0 = no limit; none = 5 on a CPU, no limit on a GPU"""
    largest_batch: bool = False
    """also find the largest --batch-size that fits"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure, print the table and the flags; return 1 if nothing stayed finite."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla tune RECIPE")
    rows = flat(read_recipe(config.recipe, words)).get("batch_size") or 0
    if config.largest_batch and not rows:
        raise AmpXlaError(f"--largest-batch: recipe {config.recipe} has no --batch-size to vary")
    here = machine.look()
    note(here.describe())
    for name, why in here.absent.items():
        note(f"not tried: {name} ({why})")
    default_minutes = 0.0 if here.gpu else CPU_MINUTES
    outcomes = measure(
        [Request(config.recipe, words, p, x, steps=config.steps) for p, x in here.ladder()],
        config.rounds,
        TIMEOUT,
        budget=60 * (default_minutes if config.minutes is None else config.minutes),
    )
    print(table.render(outcomes))
    best, reason = table.recommend(outcomes)
    if not any(o.loss is not None and o.status == "ok" for o in outcomes):
        note(reason)
        return 1
    print(reason)
    if best is not None:
        print(f"train with: --precision {best.precision} --xla {best.xla}")
        print(table.pays_from(best, outcomes), end="")
    if config.largest_batch:
        best = best or next(o for o in outcomes if o.status == "ok")
        print(_largest_batch(config, words, best, rows, here))
    return 0


def read_recipe(recipe: str, words: Sequence[str]) -> Any:
    """Return the recipe's configuration, unless its precision and XLA mode cannot be measured."""
    for flag in ("--precision", "--xla"):
        if any(word.split("=")[0] == flag for word in words):
            raise AmpXlaError(f"{flag}: tune measures every value of this flag; leave the flag out")
    config = find_recipe(recipe).parse(words)
    precision_options(config, "this measures the precisions and XLA modes of")
    return config


def largest_batch(fits: Callable[[int], bool], rows: int) -> int:
    """Return the largest batch size that fits, at most 1/16 too low; 0 if none fits.

    ``fits`` tries a batch size; ``rows`` is the first one.
    """
    low, high = 0, rows
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        if middle - low >= 8:
            middle -= middle % 8  # tensor cores need multiples of 8
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _largest_batch(
    config: Config, words: Sequence[str], best: Outcome, rows: int, here: machine.Machine
) -> str:
    """Find the largest batch size for the combination ``best``; return a sentence about it."""
    # On a CPU this limit stops a process before the machine runs out of memory.
    space = 0 if here.gpu else int(0.9 * here.memory_gib * 2**30)

    def fits(size: int) -> bool:
        flags = (*words, "--batch-size", str(size))
        request = Request(config.recipe, flags, best.precision, best.xla, space, 1)
        outcome = measure([request], 1, TIMEOUT)[0]
        note(f"batch size {size}: {outcome.status}")
        if outcome.status in ("crashed", "refused"):
            raise AmpXlaError(f"batch size {size} failed: {outcome.why}")
        return outcome.status != "out of memory" and outcome.status != "timed out"

    size = largest_batch(fits, rows)
    return f"largest batch: --batch-size {size}" if size else "largest batch: not even one row fits"
