"""``amp-xla export``: a trained model as a SavedModel, for serving by other programs."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Callable, List, Optional

from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.recipe import own_recipe, recipe_module
from amp_xla.training.checkpoint import find

_FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


@dataclasses.dataclass(frozen=True)
class Config:
    """Write a trained model, with its whole tables, as a SavedModel."""

    run: str = "runs/recommendation/latest"
    """run folder, as printed at the end of training"""
    to: Optional[str] = None
    """folder to write, which must not exist (default: export in the run folder)"""
    checkpoint: Optional[str] = None
    """name of a checkpoint in the run folder (default: the best)"""
    recipe: Optional[str] = None
    """path of the recipe's file, if it is not one of this project (default: the run's)"""


def main(argv: List[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "amp-xla export RUN")
    saved = find(Path(config.run), config.checkpoint)
    recipe = config.recipe or own_recipe(saved.recipe)
    export = getattr(recipe_module(recipe), "export", None)
    if export is None:
        raise AmpXlaError(
            f"{config.run} has recipe {recipe}, which cannot be exported; recommendation can"
        )
    folder = Path(config.run, "export") if config.to is None else Path(config.to)
    if folder.exists():
        raise AmpXlaError(f"{folder} exists already: remove it, or name another one with --to")
    signature = _whole(folder, lambda temporary: export(saved, temporary))
    output.lines([f"written: {folder}, from {saved.path.name}: {signature}"])
    return 0


def _whole(folder: Path, write: Callable[[Path], str]) -> str:
    """Let ``write`` fill a temporary folder, and rename it to ``folder``.

    Raises:
      AmpXlaError: the disk is full; nothing is left.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(str(temporary), ignore_errors=True)
    try:
        result = write(temporary)
        os.rename(str(temporary), str(folder))
    except Exception as error:
        full = [text for text in _FULL if text in str(error)]  # TensorFlow has its own classes
        if full:
            raise AmpXlaError(f"cannot write {folder}: {full[0]}") from error
        raise
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)
    return result
