"""``amp-xla export``: a trained model as a SavedModel, for serving by other programs."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Callable, List, Optional

from amp_xla.commands.predict import SavedOptions
from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import output

_FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


@dataclasses.dataclass(frozen=True)
class Config:
    """Write a trained model, with its whole tables, as a SavedModel."""

    run: str = "runs/recommendation/latest"
    """run folder, as printed at the end of training"""
    to: Optional[str] = None
    """folder to write, which must not exist; none = export in the run folder"""
    saved: SavedOptions = SavedOptions()


def main(argv: List[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "amp-xla export RUN")
    saved, export = config.saved.open(config.run, "export", "recommendation can")
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
