"""Checkpoints: one directory each, whole or absent, with the tensors and the loop's state."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError

_TENSORS, _STATE = "tensors", "state.json"


class CheckpointError(AmpXlaError):
    """A checkpoint is missing, damaged or does not fit the model."""


class Checkpoints:
    """Writes and reads the checkpoints of one run.

    Args:
      folder: ``runs/<recipe>/<name>/checkpoints``.
      variables: all that must survive: weights, optimizer slots, counters.
      keep: how many step checkpoints stay, besides ``best``.
    """

    def __init__(self, folder: Path, variables: Sequence[Any], keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self._saver = tf.train.Saver(list(variables), max_to_keep=None, save_relative_paths=True)

    def save(self, name: str, state: Dict[str, Any]) -> Path:
        """Writes a checkpoint under ``name``, replacing one of that name; returns its path."""
        target, temporary = self.folder / name, self.folder / f".{name}.tmp"
        old = self.folder / f".{name}.old"
        try:
            for leftover in (temporary, old):
                shutil.rmtree(leftover, ignore_errors=True)
            temporary.mkdir(parents=True)
            self._saver.save(
                backend.session(),
                str(temporary / _TENSORS),
                write_meta_graph=False,
                write_state=False,
            )
            with open(temporary / _STATE, "w", encoding="utf-8") as file:
                json.dump(state, file, indent=1)
            if target.exists():
                os.rename(target, old)
            os.rename(temporary, target)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"cannot write the checkpoint {target}: {error}") from error
        if name.startswith("step-"):
            for stale in self.steps()[: -self.keep]:
                shutil.rmtree(stale, ignore_errors=True)
        return target

    def steps(self) -> List[Path]:
        """The step checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*"), key=lambda p: int(p.name.split("-")[1]))

    def restore(self, path: Path) -> Dict[str, Any]:
        """Loads tensors into the session and returns the loop's state."""
        try:
            with open(path / _STATE, encoding="utf-8") as file:
                state: Dict[str, Any] = json.load(file)
            self._saver.restore(backend.session(), str(path / _TENSORS))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from error
        return state


def find(run: Path, name: Optional[str] = None) -> Path:
    """The checkpoint of a run to predict with: ``best``, else the newest.

    Raises:
      CheckpointError: there is none; the message lists what is there.
    """
    folder = run / "checkpoints"
    found = sorted(p.name for p in folder.glob("*") if p.is_dir() and not p.name.startswith("."))
    if name is not None:
        if name in found:
            return folder / name
        raise CheckpointError(f"{folder} has no checkpoint {name!r}; found: {found or 'none'}")
    if "best" in found:
        return folder / "best"
    steps = [n for n in found if n.startswith("step-")]
    if not steps:
        raise CheckpointError(f"{folder} has no checkpoint yet")
    return folder / max(steps, key=lambda n: int(n.split("-")[1]))


def restore_weights(path: Path, weights: Sequence[Any]) -> None:
    """Loads only ``weights`` (a model's) from a checkpoint; optimizer state stays on disk."""
    try:
        saver = tf.train.Saver(list(weights))
        saver.restore(backend.session(), str(path / _TENSORS))
    except (ValueError, tf.errors.OpError) as error:
        raise CheckpointError(f"cannot read the weights of {path}: {error}") from error
