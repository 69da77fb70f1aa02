"""``amp-xla train RECIPE FLAGS``: train a recipe. ``train RECIPE --help`` lists its flags."""

from __future__ import annotations

import dataclasses
import sys
from typing import Optional, Sequence

from amp_xla.config import parse, split_words
from amp_xla.training import launch
from amp_xla.training.recipe import find_recipe


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a recipe. Flags after its name are the recipe's; `--` before them is optional."""

    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--" not in words and words[:1] not in (["-h"], ["--help"]):
        first = "".join(words[:1])
        words.insert(2 if first == "--recipe" else int(first.startswith("--recipe=")), "--")
    own_words, recipe_words = split_words(words)
    config = parse(Config, own_words, "amp-xla train RECIPE")
    return launch.main(find_recipe(config.recipe), recipe_words)
