"""Tables of which each rank has some rows, in the checkpoints of a run.

Each rank writes its rows into one folder; when all have, rank 0 moves the files into its
checkpoint, whose manifest names all of them: it is whole with every file, or it does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from safetensors import SafetensorError

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.sok.saver import TableShards
from amp_xla.training.checkpoint import CheckpointError


class Shards:
    """Writing of sharded tables by all ranks; does nothing without such tables.

    Args:
      sharded: the job's, or None.
      ranks: those that train together.
    """

    def __init__(self, sharded: Optional[TableShards], ranks: Any) -> None:
        self._sharded, self._ranks = sharded, ranks
        self._written = 0

    def write(self, checkpoints: Path) -> Optional[Path]:
        """Write all ranks' rows into a new folder inside ``checkpoints``; all ranks call it.

        Raises:
          CheckpointError: on all ranks, if one could not write; nothing is left.
        """
        if self._sharded is None:
            return None
        self._written += 1
        folder = checkpoints / f"{durable.TEMPORARY}shards-{self._written}"
        failed = self._ranks.from_first(lambda: self._made(folder))
        if not failed:
            session = backend.session()  # Keras has one per thread
            results = self._ranks.all_do(lambda: self._write_own(folder, session))
            failed = next(filter(None, results), "")
        if failed:
            if self._ranks.first:
                durable.remove(folder)
            raise CheckpointError(f"cannot write the tables of a checkpoint: {failed}")
        return folder

    def _made(self, folder: Path) -> str:
        try:
            if folder.exists():
                durable.remove(folder)
            folder.mkdir()
        except OSError as error:
            return f"{folder}: {error.strerror}"
        return ""

    def _write_own(self, folder: Path, session: Any) -> str:
        assert self._sharded is not None
        try:
            if not folder.is_dir():
                return (
                    f"{folder} is not on {self._ranks.world.name}: runs/ must be on a file system "
                    f"that all hosts share"
                )
            self._sharded.write(folder, session)
        except OSError as error:
            return f"{self._ranks.world.name}, {error.filename or folder}: {error.strerror}"
        except SafetensorError as error:  # also a full disk
            return f"{self._ranks.world.name}, {folder}: {error}"
        except AmpXlaError as error:
            return f"{self._ranks.world.name}: {error}"
        return ""
