"""Tables in files, one per rank, which any number of ranks can read.

``NAME-RANK-of-RANKS.safetensors`` has the rows of one rank: those with row % RANKS == RANK.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, Mapping

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.sok import ranks, table

tf: Any = backend.tensorflow()


class Saver:
    """SparseOperationKit's saver. In a graph each call returns an operation to run."""

    def dump_to_file(self, embedding_variable: Any, filepath: str) -> Any:
        """Write this rank's rows into the folder ``filepath``; all ranks call it."""
        rows = table.rows(embedding_variable)

        def write(values: Any) -> Any:
            Path(filepath).mkdir(parents=True, exist_ok=True)
            write_rows(Path(filepath), rows.name, {rows.name: values})
            return np.int64(rows.here)

        return tf.numpy_function(write, [embedding_variable], tf.int64)

    def restore_from_file(self, embedding_variable: Any, filepath: str) -> Any:
        """Read this rank's rows from files of any number of ranks; all ranks call it.

        Raises:
          AmpXlaError: when it runs: see ``read_rows``.
        """
        rows = table.rows(embedding_variable)

        def read() -> Any:
            return read_rows(Path(filepath), rows.name, rows.name, rows)

        value = tf.numpy_function(read, [], tf.float32)
        value.set_shape(embedding_variable.shape)
        return embedding_variable.assign(value)

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> Any:
        """Set the table from all of its rows, [height, width], or a list of parts of them."""
        rows = table.rows(embedding_variable)
        if isinstance(tensors, (list, tuple)):
            tensors = tf.concat([tf.cast(part, tf.float32) for part in tensors], 0)
        value = tf.numpy_function(rows.taken, [tf.cast(tensors, tf.float32)], tf.float32)
        value.set_shape(embedding_variable.shape)
        return embedding_variable.assign(value)


def write_rows(folder: Path, name: str, tensors: Mapping[str, Any]) -> None:
    """Write tensors with this rank's rows into a file in ``folder``; return once it is on disk."""
    rank, size = ranks.place()
    path = folder / f"{name}-{rank}-of-{size}.safetensors"
    temporary = folder / f"{durable.TEMPORARY}{path.name}"
    safetensors.numpy.save_file(dict(tensors), str(temporary))
    durable.adopt(temporary, path)
    if rank == 0:
        for count, paths in _files(folder, name).items():
            for older in paths.values() if count != size else ():
                older.unlink()


def read_rows(folder: Path, name: str, tensor: str, rows: table.Rows) -> Any:
    """Return this rank's rows, float32 [rows here, width], from files of any number of ranks.

    Args:
      folder, name: as for ``write_rows``.
      tensor: name of the tensor in the files.
      rows: of the table.

    Raises:
      AmpXlaError: files are missing, damaged, or of another table.
    """
    files = _files(folder, name)
    if len(files) != 1:
        counts = " and of ".join(f"{count} ranks" for count in sorted(files)) or "none"
        raise AmpXlaError(f"{folder} needs the files of one table {name}; there: {counts}")
    ((count, paths),) = files.items()
    missing = [str(number) for number in range(count) if number not in paths]
    if missing:
        raise AmpXlaError(f"{folder} lacks the rows of rank {', '.join(missing)} of table {name}")
    values = np.empty((rows.here, rows.width), np.float32)
    numbers = np.arange(rows.rank, rows.height, rows.size)
    for number, path in paths.items():
        mine = numbers % count == number
        shape = (len(range(number, rows.height, count)), rows.width)
        try:
            with safe_open(str(path), framework="np") as file:
                shard = file.get_tensor(tensor)
        except (OSError, SafetensorError) as error:
            raise AmpXlaError(f"cannot read {tensor} in {path}: {error}") from error
        if shard.shape != shape or shard.dtype != np.float32:
            raise AmpXlaError(
                f"{path}: {tensor} is {shard.dtype} {list(shard.shape)}; a table of "
                f"[{rows.height}, {rows.width}] needs float32 {list(shape)}"
            )
        values[mine] = shard[numbers[mine] // count]
    return values


def _files(folder: Path, name: str) -> Dict[int, Dict[int, Path]]:
    """Return number of ranks -> rank -> file of that rank."""
    pattern = re.compile(re.escape(name) + r"-(\d+)-of-([1-9]\d*)\.safetensors")
    by_size: Dict[int, Dict[int, Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = pattern.fullmatch(path.name)
        if match and int(match.group(1)) < int(match.group(2)):
            by_size.setdefault(int(match.group(2)), {})[int(match.group(1))] = path
    return by_size
