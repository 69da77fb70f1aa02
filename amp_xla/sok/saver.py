"""Tables saved as one file per rank, which any number of ranks can read.

``NAME-RANK-of-RANKS.safetensors`` has the rows with row % RANKS == RANK. In a run's
checkpoints NAME is ``rows``, and a file has these rows of all tables and optimizer slots.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.precision.arrays import is_finite
from amp_xla.process import durable
from amp_xla.sok import ranks, table

tf: Any = backend.tensorflow()

_FILES = "rows"


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
        """Read this rank's rows from files that any number of ranks wrote; all ranks call it."""
        rows = table.rows(embedding_variable)
        return _assign(
            embedding_variable, lambda: read_rows(Path(filepath), rows.name, rows.name, rows)
        )

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> Any:
        """Set the table from all rows, [height, width], or from a list of parts to concatenate."""
        rows = table.rows(embedding_variable)
        if isinstance(tensors, (list, tuple)):
            tensors = tf.concat([tf.cast(part, tf.float32) for part in tensors], 0)
        return _assign(embedding_variable, rows.taken, tf.cast(tensors, tf.float32))


def _assign(variable: Any, function: Callable[..., Any], *inputs: Any) -> Any:
    value = tf.numpy_function(function, inputs, tf.float32)
    value.set_shape(variable.shape)
    return variable.assign(value)


def write_rows(folder: Path, name: str, tensors: Mapping[str, Any]) -> None:
    """Write tensors with this rank's rows to a file in ``folder``; wait until it is on disk.

    If the files of all ranks are there now, delete older files that another number of ranks wrote.
    """
    rank, size = ranks.place()
    path = folder / f"{name}-{rank}-of-{size}.safetensors"
    temporary = folder / f"{durable.TEMPORARY}{path.name}"
    safetensors.numpy.save_file(dict(tensors), str(temporary))
    durable.adopt(temporary, path)
    files = _files(folder, name)
    if len(files.pop(size, {})) == size:
        for older in (path for paths in files.values() for path in paths.values()):
            with contextlib.suppress(FileNotFoundError):  # two ranks may be the last
                older.unlink()


def read_rows(folder: Path, name: str, tensor: str, rows: table.Rows) -> Any:
    """Return this rank's rows, float32, from files that any number of ranks wrote.

    Raises:
      AmpXlaError: files are missing, damaged, or belong to another table.
    """
    every = _files(folder, name)  # of two numbers of ranks if a rank was killed while writing
    files = {count: paths for count, paths in every.items() if len(paths) == count} or every
    if len(files) != 1:
        counts = ", ".join(map(str, sorted(files))) or "none"
        raise AmpXlaError(
            f"{folder} needs files {name}-RANK-of-RANKS.safetensors with one value of RANKS; "
            f"found values: {counts}{'; delete the older files' * (len(files) > 1)}"
        )
    ((count, paths),) = files.items()
    missing = [f"{name}-{n}-of-{count}.safetensors" for n in range(count) if n not in paths]
    if missing:
        raise AmpXlaError(f"{folder} has no {', '.join(missing)}")
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
    """Return the files of a table: number of ranks -> rank -> path."""
    pattern = re.compile(re.escape(name) + r"-(\d+)-of-([1-9]\d*)\.safetensors")
    by_size: Dict[int, Dict[int, Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = pattern.fullmatch(path.name)
        if match and int(match.group(1)) < int(match.group(2)):
            by_size.setdefault(int(match.group(2)), {})[int(match.group(1))] = path
    return by_size


class TableShards:
    """This rank's rows of a job's tables and of the slots of their Keras optimizer.

    The optimizer has slots only after a step is built. Without ``optimizer`` there are no slots.
    """

    def __init__(self, tables: Sequence[Any], optimizer: Optional[Any] = None) -> None:
        self._tables, self.optimizer = list(tables), optimizer

    def holds(self, variable: Any) -> bool:
        """Return True if ``variable`` is one of the tables."""
        return any(variable is each for each in self._tables)

    def variables(self) -> List[Any]:
        """Return tables and existing slots."""
        return [variable for _, variable, _ in self._parts()]

    def write(self, folder: Path) -> None:
        """Write this rank's rows to a file; wait until it is on disk.

        Raises:
          AmpXlaError: a row is not finite.
          OSError, SafetensorError: the file cannot be written, e.g. on a full disk.
        """
        tensors, session = {}, backend.session()
        for name, variable, _ in self._parts():
            tensors[name] = session.run(variable)
            if not is_finite(tensors[name]):
                raise AmpXlaError(f"{name} is not finite")
        write_rows(folder, _FILES, tensors)

    def read(self, folder: Path, weights_only: bool = False) -> None:
        """Read the rank's rows of tables and, unless ``weights_only``, slots; see ``read_rows``."""
        session = backend.session()
        for name, variable, rows in self._parts():
            if weights_only and not self.holds(variable):
                continue
            values = read_rows(folder, _FILES, name, rows)
            # Fed, because other programs cannot serve a graph with a Python function.
            with session.graph.as_default():
                fed = tf.compat.v1.placeholder(tf.float32, values.shape)
                session.run(variable.assign(fed, read_value=False), {fed: values})

    def _parts(self) -> Iterator[Tuple[str, Any, table.Rows]]:
        """Yield (name in files, variable, rows) of each table and optimizer slot."""
        for variable in self._tables:
            rows = table.rows(variable)
            yield rows.name, variable, rows
            if self.optimizer is None:
                continue
            for slot in self.optimizer.get_slot_names():
                yield f"{rows.name}.{slot}", self.optimizer.get_slot(variable, slot), rows
