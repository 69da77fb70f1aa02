"""Tables in files, one shard a rank; read again on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.sok import table

tf: Any = backend.tensorflow()


class Saver:
    """Each call works at once in eager TensorFlow; in a graph it returns an operation to run."""

    def dump_to_file(self, embedding_variable: Any, filepath: str) -> Any:
        """Writes this rank's rows into the folder ``filepath``; all ranks call it."""
        rows = table.rows(embedding_variable)
        base = rows.name

        def write(values: Any) -> Any:
            Path(filepath).mkdir(parents=True, exist_ok=True)
            write_rows(Path(filepath), rows, base, values)
            return np.int64(rows.here)

        return tf.numpy_function(write, [embedding_variable], tf.int64)

    def restore_from_file(self, embedding_variable: Any, filepath: str) -> Any:
        """Fills this rank's rows from what any number of ranks wrote; all ranks call it.

        Raises:
          AmpXlaError: when it runs: the files are another table's, or some are missing.
        """
        rows = table.rows(embedding_variable)

        def read() -> Any:
            return rows_in(Path(filepath), rows, rows.name)

        value = tf.numpy_function(read, [], tf.float32)
        value.set_shape(embedding_variable.shape)
        return embedding_variable.assign(value)

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> Any:
        """Fills the table from all its rows, [height, width], or a list of parts of them."""
        rows = table.rows(embedding_variable)
        if isinstance(tensors, (list, tuple)):
            tensors = tf.concat([tf.cast(part, tf.float32) for part in tensors], 0)

        def take(whole: Any) -> Any:
            return rows.taken(whole)

        value = tf.numpy_function(take, [tf.cast(tensors, tf.float32)], tf.float32)
        value.set_shape(embedding_variable.shape)
        return embedding_variable.assign(value)


def write_rows(folder: Path, rows: table.Rows, base: str, values: Any) -> None:
    """Puts this rank's rows into ``folder`` as ``base-RANK-of-RANKS.npy``, on the disk."""
    path = folder / f"{base}-{rows.rank}-of-{rows.size}.npy"
    temporary = path.with_name(f".{path.name}.tmp.npy")
    np.save(str(temporary), values)
    durable.adopt(temporary, path)
    if rows.rank == 0:
        shape = {"height": rows.height, "width": rows.width, "shards": rows.size}
        durable.write(folder / f"{base}.json", json.dumps(shape).encode() + b"\n")


def rows_in(folder: Path, rows: table.Rows, base: str) -> Any:
    """float32 [rows of this rank, width], from what any number of ranks wrote.

    Raises:
      AmpXlaError: the files are another table's, or some are missing.
    """
    try:
        shape: Dict[str, int] = json.loads((folder / f"{base}.json").read_text())
    except (OSError, ValueError) as error:
        there = ", ".join(sorted(path.stem for path in folder.glob("*.json"))) or "none"
        raise AmpXlaError(f"{folder} has no table {base} ({error}); there: {there}") from error
    found, wanted = [shape["height"], shape["width"]], [rows.height, rows.width]
    if found != wanted:
        raise AmpXlaError(f"{folder} has {base} of shape {found}; wanted {wanted}")
    count = shape["shards"]
    paths = [folder / f"{base}-{number}-of-{count}.npy" for number in range(count)]
    missing: List[str] = [path.name for path in paths if not path.is_file()]
    if missing:
        raise AmpXlaError(f"{folder} lacks {', '.join(missing)} of table {base}")
    values = np.empty((rows.here, rows.width), np.float32)
    numbers = np.arange(rows.rank, rows.height, rows.size)
    for number, path in enumerate(paths):
        shard = np.load(str(path), mmap_mode="r")
        mine = numbers % count == number
        values[mine] = shard[numbers[mine] // count]
    return values
