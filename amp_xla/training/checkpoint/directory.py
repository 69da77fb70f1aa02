"""The folder of a run's checkpoints: names, what is in force, what stays. No TensorFlow here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Optional

from amp_xla.process import durable
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import manifest
from amp_xla.training.checkpoint.saved import CheckpointError


class Cost(NamedTuple):
    """What checkpoints cost so far: ``held_seconds`` of training, ``seconds`` of writing."""

    written: int
    held_seconds: float
    seconds: float
    bytes_each: int


def free_name(folder: Path, step: int) -> str:
    """The name of a checkpoint of ``step``: a second one is ``step-N.1``."""
    name, revision = f"step-{step:08d}", 0
    while (folder / name).exists():
        revision += 1
        name = f"step-{step:08d}.{revision}"
    return name


def publish(temporary: Path, path: Path, best: bool) -> None:
    """Gives what is written its name; from here on it exists, is the last and maybe the best."""
    manifest.write(temporary, path.name)
    durable.publish(temporary, path)
    manifest.point(path.parent, manifest.LAST, path.name)
    if best:
        manifest.point(path.parent, manifest.BEST, path.name)


def prune(folder: Path, keep: int) -> None:
    """Deletes what is neither among the ``keep`` newest nor the best."""
    found = manifest.steps(folder)
    kept = {path.name for path in found[-keep:]}
    try:
        kept.add(manifest.pointed(folder, manifest.BEST) or "")
    except ValueError:
        return  # which one is the best is not known: delete none
    for path in found:
        if path.name not in kept:
            durable.remove(path)


def settle(path: Path, best_step: Optional[int]) -> None:
    """Makes a folder say what a run that resumes from ``path`` in it will lean on.

    Damaged newer checkpoints are set aside under ``damaged-*``, unfinished ones deleted, pointers
    set right.

    Raises:
      CheckpointError: the folder cannot be changed.
    """
    try:
        _settle(path.parent, path, best_step)
    except OSError as error:
        raise CheckpointError(
            f"cannot tidy up {error.filename2 or error.filename}: {error.strerror}; remove it"
        ) from error


def _settle(folder: Path, path: Path, best_step: Optional[int]) -> None:
    for unfinished in folder.glob(f"{durable.TEMPORARY}*"):
        if unfinished.is_dir() and not unfinished.is_symlink():
            durable.remove(unfinished)
    found = manifest.steps(folder)
    for newer in found[found.index(path) + 1 :]:
        aside = folder / f"damaged-{newer.name}"
        while aside.exists():
            aside = aside.with_name(aside.name + "+")
        os.rename(str(newer), str(aside))
        note(f"set aside as {aside.name}")
    _set_right(folder, manifest.LAST, path.name)
    if best_step is not None:
        same = [p.name for p in manifest.steps(folder) if _step(p) == best_step]
        if same:
            _set_right(folder, manifest.BEST, same[-1])
            wrong = manifest.problems(folder / same[-1])
            if wrong:
                note(f"the best checkpoint, {same[-1]}, is damaged: {'; '.join(wrong)}")
        else:
            note(f"the best checkpoint, of step {best_step}, is gone; the next best replaces it")


def _set_right(folder: Path, pointer: str, name: str) -> None:
    try:
        before = manifest.pointed(folder, pointer)
    except ValueError as error:
        note(f"repairing the pointer {error}")
        before = None
    if before != name:
        manifest.point(folder, pointer, name)


def _step(path: Path) -> int:
    return (manifest.order(path.name) or (-1, 0))[0]
