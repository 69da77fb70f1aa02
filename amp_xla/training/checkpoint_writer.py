"""Checkpoints of a run, written in the background while training continues."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

import numpy as np

from amp_xla.training import checkpoint
from amp_xla.training.run import RunFolder


class CheckpointWriter:
    """Thread that writes a run's checkpoints, and keeps the ``keep`` newest and the best."""

    def __init__(self, run: RunFolder, keep: int, files: Mapping[str, bytes]) -> None:
        self._run, self._keep, self._files = run, keep, files
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Optional[Future[None]] = None

    def save(
        self,
        step: int,
        snapshot: Callable[[], Mapping[str, np.ndarray]],
        state: Mapping[str, Any],
        shards: Optional[Path] = None,
    ) -> None:
        """Copy the tensors now and write them in the background; see ``checkpoint.write``.

        Raises:
          CheckpointError: the write before this one failed.
        """
        self.wait()
        self._pending = self._thread.submit(self._write, step, snapshot(), state, shards)

    @property
    def busy(self) -> bool:
        """True during a write."""
        return self._pending is not None and not self._pending.done()

    def poll(self) -> None:
        """Raise the error of the last write, if it has failed."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk; raise CheckpointError if it cannot be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(
        self, step: int, tensors: Mapping[str, Any], state: Mapping[str, Any], shards: Any
    ) -> None:
        folder = self._run.checkpoints
        checkpoint.write(folder, step, tensors, state, self._files, shards)
        self._run.has_checkpoint()
        checkpoint.prune(folder, self._keep)
