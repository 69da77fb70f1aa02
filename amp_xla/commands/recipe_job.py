"""Recipes opened for looking at, not for training: built as a float16 GPU would train them."""

from __future__ import annotations

import os
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence

from amp_xla.config import changed, parse
from amp_xla.errors import AmpXlaError
from amp_xla.recipe import recipe_module
from amp_xla.settings import Settings
from amp_xla.training.options import switches_of


class Opened(NamedTuple):
    """``job`` is the recipe's, ``config`` what it was built from."""

    config: Any
    job: Any


def open_recipe(recipe: str, words: Sequence[str], loss_scale: Optional[str] = None) -> Opened:
    """Builds a recipe's job with ``precision=amp`` and the loss scale that float16 calls for.

    Args:
      recipe: a module in ``recipes``, or the path of a recipe's file.
      words: flags of the recipe.
      loss_scale: overrides the recipe's.

    Raises:
      AmpXlaError: there is no such recipe; or ``words`` ask for another precision.
    """
    module = recipe_module(recipe)
    config = parse(module.Config, list(words), f"python -m {module.__name__}")
    switches = switches_of(config, "this shows what the graph rewrite does in")
    if switches.precision not in (None, "amp"):
        raise AmpXlaError(
            f"--precision {switches.precision}: this command shows what mixed precision does; "
            f"leave it out, or say amp"
        )
    wanted = loss_scale or switches.loss_scale
    # On a machine without a GPU a recipe would build itself for bfloat16, or for float32.
    scale = Settings.from_environment(
        os.environ, precision="amp", loss_scale=wanted
    ).effective_loss_scale("float16")
    config = changed(config, precision="amp", loss_scale=str(scale))
    return Opened(config, module.build(config))


def feeds(job: Any) -> Iterator[List[Any]]:
    """Training batches without end, as arrays in the order of the step's placeholders."""
    number = epoch = 0
    while True:
        for batch in job.batches.epoch(epoch, start=0):
            yield job.step.arrays(batch, number)
            number += 1
        epoch += 1
