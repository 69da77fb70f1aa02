"""Tables of which each rank has some rows, in the checkpoints of a run.

Each rank writes its rows into one folder; when all have, rank 0 moves the files into its
checkpoint, whose manifest names all of them: it is whole with every file, or it does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from safetensors import SafetensorError

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.sok.saver import TableShards
from amp_xla.training.checkpoint import CheckpointError


def write_shards(tables: TableShards, ranks: Any, checkpoints: Path) -> Path:
    """Write all ranks' rows into a new folder inside ``checkpoints``; all ranks call it.

    Raises:
      CheckpointError: on all ranks, if one could not write; nothing is left.
    """
    folder = checkpoints / f"{durable.TEMPORARY}shards"
    session = backend.session()  # Keras has one per thread

    def make() -> None:
        if folder.exists():
            durable.remove(folder)
        folder.mkdir()

    def write() -> None:
        if not folder.is_dir():
            raise AmpXlaError(f"{folder} is missing: all hosts must share the file system of runs/")
        tables.write(folder, session)

    def failure(work: Callable[[], None]) -> str:
        try:
            work()
            return ""
        except (OSError, SafetensorError, AmpXlaError) as error:
            return f"{ranks.world.name}: {error}"

    failed = ranks.from_first(lambda: failure(make))
    if not failed:
        failed = "; ".join(filter(None, ranks.all_do(lambda: failure(write))))
    if failed:
        if ranks.first:
            durable.remove(folder)
        raise CheckpointError(f"cannot write the tables of a checkpoint: {failed}")
    return folder
