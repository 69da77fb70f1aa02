"""The command ``tune``: which precision and XLA mode train a recipe fastest on this machine."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from typing_extensions import Annotated

from amp_xla.config import parse, split_words, within
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.speed import machine, table
from amp_xla.speed.measure import Request, measure
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


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure, print the table and the flags; return 1 if nothing stayed finite."""
    own_words, words = split_words(argv)
    config = parse(Config, own_words, "amp-xla tune RECIPE")
    check_recipe(config.recipe, words)
    here = machine.look()
    note(here.describe())
    for name, why in here.absent.items():
        note(f"not tried: {name} ({why})")
    default_minutes = 0.0 if here.gpu else CPU_MINUTES
    outcomes = measure(
        [Request(config.recipe, words, *modes) for modes in here.ladder()],
        config.steps,
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
    return 0


def check_recipe(recipe: str, words: Sequence[str]) -> None:
    """Raise AmpXlaError if precisions and XLA modes of a recipe cannot be measured."""
    for flag in ("--precision", "--xla"):
        if any(word.split("=")[0] == flag for word in words):
            raise AmpXlaError(f"{flag}: tune measures every value of this flag; leave the flag out")
    config = find_recipe(recipe).parse(words)
    precision_options(config, "this measures the precisions and XLA modes of")
