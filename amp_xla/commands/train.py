"""``amp-xla train --recipe ...``: what ``make train`` does, where there is no Makefile.

    python -m amp_xla train --recipe classification -- --epochs 3

What follows ``--`` are the recipe's own flags; ``-- --help`` lists them.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from amp_xla.process.arguments import parse, recipe_module, split_words


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a recipe. After `--`: the recipe's flags."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command; returns the exit code of the recipe's ``main``."""
    own, words = split_words(argv)
    config = parse(Config, own, "python -m amp_xla train")
    return int(recipe_module(config.recipe).main(words))
