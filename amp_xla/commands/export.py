"""``amp-xla export``: a trained model as a SavedModel, for other programs to serve."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Optional

from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.recipe import own_recipe, recipe_module
from amp_xla.training.checkpoint import find


@dataclasses.dataclass(frozen=True)
class Config:
    """Write a trained model, its tables whole, as a SavedModel."""

    run: str = "runs/recommendation/latest"
    """run folder, as printed at the end of training"""
    to: Optional[str] = None
    """folder to write, which must not be there yet; none = export in the run folder"""
    checkpoint: Optional[str] = None
    """name of a checkpoint in the run folder; none = best"""
    recipe: Optional[str] = None
    """path of the recipe's file, where it is not one of this project; none = as the run says"""


def main(argv: List[str]) -> int:
    """The command."""
    config = parse(Config, argv, "amp-xla export RUN")
    saved = find(Path(config.run), config.checkpoint)
    recipe = config.recipe or own_recipe(saved.recipe)
    export = getattr(recipe_module(recipe), "export", None)
    if export is None:
        raise AmpXlaError(
            f"{config.run} is of recipe {recipe}, which has no export; recommendation has one"
        )
    folder = Path(config.run, "export") if config.to is None else Path(config.to)
    if folder.exists():
        raise AmpXlaError(f"{folder} is there already: remove it, or name another with --to")
    told = export(saved, folder)
    output.lines([f"written: {folder}, of {saved.path.name}: {told}"])
    return 0
