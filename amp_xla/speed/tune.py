"""``make tune RECIPE=...``: which precision and XLA mode train this recipe fastest on this machine.

    python -m amp_xla tune --recipe classification -- --batch-size 64

Everything after ``--`` belongs to the recipe. The choice is kept in runs/tuned.json, and
``make train ... TUNED=1`` with the same settings uses it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from typing import Any, Optional, Sequence

from typing_extensions import Annotated

from amp_xla.errors import AmpXlaError
from amp_xla.process.arguments import parse, recipe_module, split_words
from amp_xla.process.fields import flat, within
from amp_xla.process.typed import typed
from amp_xla.speed import choice, machine, memory, table
from amp_xla.speed.measure import Candidate, Outcome, measure
from amp_xla.speed.peak import Peak, longest, needs_rows_of_one_length, packs
from amp_xla.training.options import switches_of


@dataclasses.dataclass(frozen=True)
class Config:
    """Find the fastest precision and XLA mode that stay finite. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""
    steps: Annotated[int, within(at_least=1)] = 8
    """timed steps a round, the same batches for every combination"""
    rounds: Annotated[int, within(at_least=1)] = 3
    """turns of each combination; the table shows their median and spread"""
    timeout: Annotated[float, within(above=0)] = 900.0
    """seconds without an answer after which a combination is given up"""
    minutes: Annotated[Optional[float], within(at_least=0)] = None
    """minutes in all; what is not built by then is not measured; none = 5 on a CPU, 0 = no limit"""
    memory_gib: Annotated[float, within(at_least=0)] = 0.0
    """GiB of address space for each process, a protection for shared machines; 0 = no limit"""
    largest_batch: bool = False
    """also find the most rows that fit; on a GPU that is done anyway, but for --packed"""
    batch_memory_gib: Annotated[float, within(at_least=0)] = 0.0
    """GiB the largest batch may take; 0 = 90% of the GPU's, or of this machine's, memory"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures, prints the table, remembers the choice; 1 if nothing stayed finite."""
    own, words = split_words(argv)
    config = parse(Config, own, "python -m amp_xla tune")
    recipe_config = read_recipe(config.recipe, words)
    if config.largest_batch:
        needs_rows_of_one_length(recipe_config)
    choice.check_writable()
    began = time.monotonic()
    here = machine.look()
    say(here.describe())
    for name, why in here.absent.items():
        say(f"not tried: {name} ({why})")
    outcomes = measure(
        config.recipe,
        words,
        [Candidate(p, x, address_space=_address_space(config)) for p, x in here.ladder()],
        config.steps,
        config.rounds,
        config.timeout,
        together=not here.gpu,
        say=say,
        budget=60 * ((0.0 if here.gpu else 4.7) if config.minutes is None else config.minutes),
    )
    print(table.render(outcomes))
    best = table.fastest(outcomes)
    if best is None:
        print("no combination finished with finite numbers", file=sys.stderr)
        return 1
    chosen = choice.Choice(best.precision, best.xla, best.median)
    choice.remember(choice.key(config.recipe, recipe_config, here), chosen)
    base = next((o for o in outcomes if o.median), best)
    print(
        f"fastest that stays finite: {best.name}, {best.median / base.median:.2f}x {base.name}; "
        f"kept in {choice.CACHE}. Use it: {typed('tuned', words, RECIPE=config.recipe)}"
    )
    if config.largest_batch or (here.gpu and not packs(recipe_config)):
        largest(config, words, best, config.batch_memory_gib or 0.9 * here.memory_gib)
    say(f"tune took {time.monotonic() - began:.0f} s")
    return 0


def say(text: str) -> None:
    """A line for the reader, beside the table."""
    print(text, file=sys.stderr, flush=True)


def read_recipe(recipe: str, words: Sequence[str]) -> Any:
    """The recipe's configuration.

    Raises:
      AmpXlaError: there is no such recipe; ``words`` choose what is to be measured; the recipe
        has no switches for it.
    """
    for flag in ("--precision", "--xla"):
        if any(word.split("=")[0] == flag for word in words):
            raise AmpXlaError(f"{flag} is what gets measured here: leave it out")
    module = recipe_module(recipe)
    config = parse(module.Config, list(words), f"python -m {module.__name__}")
    switches_of(config, "this measures the precisions and XLA modes of")
    return config


def largest(config: Config, words: Sequence[str], best: Outcome, gib: float) -> None:
    """Prints the most rows of the longest shape that ``gib`` hold; they were run.

    Those with --recompute too, where the recipe has it and was not given it.
    """
    plain, again = "largest batch", "largest batch with --recompute"
    chosen = flat(read_recipe(config.recipe, words)).get("recompute")
    _largest(config, words, best, gib, again if chosen else plain)
    if chosen is False:
        try:
            _largest(config, [*words, "--recompute"], best, gib, again)
        except AmpXlaError as error:  # a model without transformer layers
            print(f"{again}: {error}")


def _largest(config: Config, words: Sequence[str], best: Outcome, gib: float, what: str) -> None:
    measured = Peak(config.recipe, words, best.precision, best.xla, _address_space(config),
                    config.timeout, say)  # fmt: skip
    rows, length = longest(best.shapes)
    found = memory.largest_batch(measured, rows, length, gib * 2**30)
    if found is None:
        print(f"{what} in {gib:.1f} GiB: none of rows of {length} was found that fits")
        return
    print(f"memory: {found.model.describe()}")
    print(
        f"{what} in {gib:.1f} GiB: {found.rows}x{length}; predicted peak "
        f"{found.predicted / 2**20:.0f} MiB, seen {found.seen / 2**20:.0f} MiB "
        f"({found.seen / found.predicted - 1:+.1%})"
    )


def _address_space(config: Config) -> int:
    return int(config.memory_gib * 2**30)


def train(argv: Optional[Sequence[str]] = None) -> int:
    """``make train TUNED=1``: replaces this process by the recipe, with the remembered choice."""
    own, words = split_words(argv)
    config = parse(Config, own, "python -m amp_xla tuned")
    recipe_config = read_recipe(config.recipe, words)
    found = choice.recall(choice.key(config.recipe, recipe_config, machine.look()))
    if found is None:
        raise AmpXlaError(
            f"nothing is known about recipe {config.recipe} with these settings on this machine; "
            f"measure it first: {typed('tune', words, RECIPE=config.recipe)}"
        )
    say(f"tuned: precision {found.precision}, xla {found.xla}")
    flags = ["--precision", found.precision, "--xla", found.xla]
    sys.stdout.flush()
    command = ["-m", "amp_xla", "train", "--recipe", config.recipe, "--", *words, *flags]
    os.execv(sys.executable, [sys.executable, *command])
    raise AssertionError("unreachable")
