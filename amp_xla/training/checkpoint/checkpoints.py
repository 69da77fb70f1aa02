"""Checkpoints of a run: written behind the loop's back, whole or absent, newest whole one wins.

Writing one, each line waiting for the disk::

    copy the variables to host memory          the only part that training waits for
    refuse NaN and infinity
    .tmp-step-N/  tensors, assets, state.json, then MANIFEST with the SHA-256 of each
    rename to step-N, sync the folder          from here on it exists
    swap the pointer LAST; swap BEST if it is the best
    delete what is neither among the newest nor the best

A kill between any two lines leaves every older checkpoint as it was. Names are never reused: a
second checkpoint of the same step is ``step-N.1``.
"""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Set

from amp_xla.backend import tf
from amp_xla.process import durable
from amp_xla.training import documents
from amp_xla.training.checkpoint import bundle, directory, manifest
from amp_xla.training.checkpoint.directory import Cost
from amp_xla.training.checkpoint.saved import STATE, CheckpointError, newest_whole, read_state


class NotFiniteError(CheckpointError):
    """A weight or optimizer slot is NaN or infinite, so nothing was written."""


class Checkpoints:
    """Writes and reads the checkpoints of one run; at most one write is under way.

    Args:
      folder: ``runs/<recipe>/<name>/checkpoints``; exists.
      variables: all that must survive: weights, optimizer slots, counters.
      keep: how many of the newest stay, besides the best; at least 1.
      unchecked: variables among them that may hold infinities for a while (sums of a window).
      assets: file name -> content: what it takes to answer besides the weights.
      published: called in the writer's thread once a checkpoint is on disk.
    """

    def __init__(
        self,
        folder: Path,
        variables: Sequence[Any],
        keep: int = 2,
        unchecked: Sequence[Any] = (),
        assets: Optional[Mapping[str, bytes]] = None,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep is {keep}; allowed: 1 or more checkpoints")
        self.folder, self.keep = folder, keep
        self.bundle = bundle.Bundle(variables)
        self._assets, self._published = dict(assets or {}), published
        self._unchecked: Set[str] = {v.op.name for v in unchecked}
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Optional[Future[None]] = None
        self._written, self._held, self._seconds, self._bytes = 0, 0.0, 0.0, 0

    # -- writing -----------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: Dict[str, Any],
        best: bool = False,
        shards: Optional[Path] = None,
    ) -> Path:
        """Copies everything now and writes it in the background; returns the path it will have.

        Args:
          step: names the checkpoint.
          state: JSON-able, the loop's part of the state.
          best: swap the pointer ``BEST`` to it.
          shards: folder of files that ranks have written for this checkpoint; they are moved.

        Raises:
          CheckpointError: the write before this one failed.
        """
        began = time.monotonic()
        self.wait()
        name = directory.free_name(self.folder, step)
        arrays = self.bundle.snapshot()
        text = documents.encode(state)
        self._pending = self._thread.submit(self._write, name, arrays, text, best, shards)
        self._held += time.monotonic() - began
        return self.folder / name

    @property
    def busy(self) -> bool:
        """True while a write is under way."""
        return self._pending is not None and not self._pending.done()

    def poll(self) -> None:
        """Raises what the last write failed with, if it has ended."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Returns when the checkpoint is on disk.

        Raises:
          CheckpointError: it could not be written; the older ones are as they were.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @property
    def cost(self) -> Cost:
        """What it has cost so far."""
        return Cost(self._written, self._held, self._seconds, self._bytes)

    def _write(
        self, name: str, arrays: Sequence[Any], state: bytes, best: bool, shards: Optional[Path]
    ) -> None:
        began = time.monotonic()
        checked = [(n, a) for n, a in zip(self.bundle.names, arrays) if n not in self._unchecked]
        culprit = bundle.first_not_finite([n for n, _ in checked], [a for _, a in checked])
        if culprit is not None:
            raise NotFiniteError(
                f"{culprit} is not finite, so {name} was not written; {self._what_is_left()}"
            )
        needed = sum(array.nbytes for array in arrays) + len(state) + 256 * len(arrays) + 4096
        needed += sum(len(data) for data in self._assets.values())
        temporary = self.folder / f"{durable.TEMPORARY}{name}"
        try:
            free = shutil.disk_usage(str(self.folder)).free
            if free < needed:
                raise OSError(f"the disk is full ({free:,} bytes free)")
            if temporary.exists():
                durable.remove(temporary)
            os.mkdir(str(temporary))
            if shards is not None:
                for part in sorted(shards.iterdir()):
                    needed += part.stat().st_size
                    os.rename(str(part), str(temporary / part.name))
                durable.remove(shards)
            self.bundle.write(temporary, arrays)
            for path in sorted(temporary.iterdir()):
                durable.sync_file(path)
            for asset, data in sorted(self._assets.items()):
                durable.write(temporary / asset, data)
            durable.write(temporary / STATE, state)
            directory.publish(temporary, self.folder / name, best)
            self._published()
            directory.prune(self.folder, self.keep)
        except (OSError, tf.errors.OpError) as error:
            reason = _first_line(error)
            shutil.rmtree(str(temporary), ignore_errors=True)  # give the room back
            raise CheckpointError(
                f"cannot write the checkpoint {self.folder / name}: {reason}; it needs {needed:,} "
                f"bytes; {self._what_is_left()}"
            ) from error
        self._seconds += time.monotonic() - began
        self._bytes = needed
        self._written += 1

    def _what_is_left(self) -> str:
        left = manifest.steps(self.folder)
        if not left:
            return "there is no older checkpoint"
        return f"{left[-1].name} is whole: --resume continues from it"

    # -- reading -----------------------------------------------------------------------------

    def newest_whole(self, good: bool = False) -> Optional[Path]:
        """See ``saved.newest_whole``."""
        return newest_whole(self.folder, good)

    def restore(self, path: Path) -> Dict[str, Any]:
        """Loads the tensors of a whole checkpoint into the session; returns the loop's state.

        Raises:
          CheckpointError: names, shapes or dtypes are not those of the variables, or the file
            cannot be read.
        """
        state = read_state(path)
        _restore(self.bundle, path, everything=True)
        return state


def _first_line(error: BaseException) -> str:
    """The reason in one line; TensorFlow 2 puts it below a heading and a stack of its own."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    lines = (getattr(error, "message", None) or str(error)).splitlines()
    # File-system errors end in "; " and the operating system's words.
    named = [line for line in lines if "; " in line and not line.startswith(" ")]
    return (named or lines)[0].strip()


def restore_weights(path: Path, weights: Sequence[Any]) -> None:
    """Loads only ``weights`` (a model's) from a checkpoint; optimizer state stays on disk.

    Raises:
      CheckpointError: as ``Checkpoints.restore``; other tensors in the file are no error.
    """
    _restore(bundle.Bundle(weights), path, everything=False)


def _restore(tensors: bundle.Bundle, path: Path, everything: bool) -> None:
    try:
        wrong = tensors.differences(path, everything)
        if wrong:
            more = f"; and {len(wrong) - 3} more tensors" if len(wrong) > 3 else ""
            raise CheckpointError(
                f"{path} holds another model, and cannot be used: {'; '.join(wrong[:3])}{more}"
            )
        tensors.restore(path)
    except (ValueError, tf.errors.OpError) as error:
        raise CheckpointError(f"cannot read {path}: {_first_line(error)}") from error
