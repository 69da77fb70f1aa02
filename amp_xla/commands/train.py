"""``amp-xla train RECIPE -- flags``: train a recipe. ``-- --help`` lists the recipe's flags."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from amp_xla.config import parse, split_words
from amp_xla.recipe import recipe_module


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a recipe. Its own flags come after `--`."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command; return the exit code of the recipe's ``main``."""
    own, words = split_words(argv)
    config = parse(Config, own, "amp-xla train RECIPE")
    return int(recipe_module(config.recipe).main(words))
