"""The command ``tune``: which precision and XLA mode train a recipe fastest on this machine."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Optional, Sequence, Tuple

from typing_extensions import Annotated

from amp_xla.config import parse, split_words, within
from amp_xla.diagnose.report_text import columns
from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.speed import machine
from amp_xla.speed.measure import Outcome, Request, measure, spread
from amp_xla.training.options import precision_options
from amp_xla.training.recipe import find_recipe

CPU_MINUTES = 5.0
TIMEOUT = 900.0  # maximum seconds per process
HEAD = ("combination", "samples/s", "spread", "step ms", "compile s", "loss", "result")


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
    """Measure; print the table and the best flags; return 1 if no combination stayed finite."""
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
    print(render(outcomes))
    best, reason = recommend(outcomes)
    if not any(o.loss is not None and o.status == "ok" for o in outcomes):
        note(reason)
        return 1
    print(reason)
    if best is not None:
        print(f"train with: --precision {best.precision} --xla {best.xla}")
        print(pays_from(best, outcomes), end="")
    return 0


def check_recipe(recipe: str, words: Sequence[str]) -> None:
    """Raise AmpXlaError if precisions and XLA modes of a recipe cannot be measured."""
    for flag in ("--precision", "--xla"):
        if any(word.split("=")[0] == flag for word in words):
            raise AmpXlaError(f"{flag}: tune measures every value of this flag; leave the flag out")
    config = find_recipe(recipe).parse(words)
    precision_options(config, "this measures the precisions and XLA modes of")


def render(outcomes: Sequence[Outcome]) -> str:
    """Return the table of all outcomes, including failures."""
    body = []
    for o in outcomes:
        measured = bool(o.samples_per_second)
        body.append([
            o.name,
            f"{o.median:.1f}" if measured else "-",
            _spread_text(o) if measured else "-",
            f"{1e3 * statistics.median(o.step_seconds):.1f}" if measured else "-",
            f"{o.warm_seconds:.1f}" if o.warm_seconds else "-",
            f"{o.loss:.4f} @{o.steps}" if o.loss is not None else "-",
            o.status + (f": {o.why}" if o.why else ""),
        ])  # fmt: skip
    return columns([HEAD, *body])


def recommend(outcomes: Sequence[Outcome]) -> Tuple[Optional[Outcome], str]:
    """Return the outcome to train with, and a sentence that gives the reason.

    ``outcomes`` are sorted, simplest first. An outcome ties with the fastest if it is slower by no
    more than the spread of the rounds. Of the fastest and those that tie with it, the simplest is
    recommended. If a tie includes the simplest of all finite outcomes, no gain is measured: None
    is returned. None is also returned if no outcome is finite.
    """
    finite = [o for o in outcomes if o.status == "ok" and o.loss is not None]
    if not finite:
        return None, "in no combination did all numbers stay finite"
    first, fastest = finite[0], max(finite, key=lambda o: o.median)
    noise = {o.name: max(spread(x.samples_per_second) for x in (fastest, o)) for o in finite}
    equals = [o for o in finite if fastest.median / o.median - 1.0 <= noise[o.name]]
    gain = f"{fastest.median / first.median:.2f}x {first.name}"
    if equals == [fastest]:
        return fastest, f"fastest: {fastest.name}, {gain}"
    rivals = [o for o in equals if o is not fastest]
    spreads = ", ".join(f"{o.name} {_spread_text(o)}" for o in equals)
    reason = (
        f"fastest: {fastest.name}, {gain}, but its difference from "
        f"{', '.join(o.name for o in rivals)} is within the spread of the rounds ({spreads})"
    )
    if first in equals:
        return None, f"{reason}: nothing to recommend; repeat with more --rounds on an idle machine"
    return equals[0], f"{reason}; the simplest of these is {equals[0].name}"


def pays_from(best: Outcome, outcomes: Sequence[Outcome]) -> str:
    """Return a line: after how many steps the XLA mode of ``best`` pays off; '' if unknown."""
    off = next((o for o in outcomes if (o.precision, o.xla) == (best.precision, "off")), best)
    times = [statistics.median(o.step_seconds or [0.0]) for o in (off, best)]
    compiling = best.warm_seconds - off.warm_seconds
    if times[0] <= times[1] or compiling <= 0:
        return ""
    return (
        f"{best.name} compiles for {compiling:.0f} s, which pays off after "
        f"{compiling / (times[0] - times[1]):,.0f} steps; --xla auto, the default, decides by the "
        f"speed of an H100\n"
    )


def _spread_text(outcome: Outcome) -> str:
    noise = spread(outcome.samples_per_second)
    return "one round only" if noise == math.inf else f"{noise:.0%}"
