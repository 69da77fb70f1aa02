"""Tables and their optimizer slots in a run's checkpoints: one file per rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.sok import saver, table

tf: Any = backend.tensorflow()

_FILES = "rows"  # rows-0-of-2.safetensors


class TableShards:
    """The tables of a job; follows ``amp_xla.training.shards.Sharded``.

    Args:
      tables: variables of layers.
      optimizer: a Keras optimizer, which has slots for them once a step is built; None = tables
        are only read.
    """

    def __init__(self, tables: Sequence[Any], optimizer: Optional[Any] = None) -> None:
        self._tables, self._optimizer = list(tables), optimizer

    def holds(self, variable: Any) -> bool:
        """Return True for one of the tables."""
        return any(variable is each for each in self._tables)

    def variables(self) -> List[Any]:
        """Return tables and existing slots."""
        return [variable for _, variable, _ in self._parts()]

    def shapes(self) -> Dict[str, str]:
        """Return name -> dtype and shape, e.g. ``float32[50000000,16]``, of whole tables."""
        return {f"{n} (rows over ranks)": f"float32[{r.height},{r.width}]"
                for n, _, r in self._parts()}  # fmt: skip

    def write(self, folder: Path, session: Any) -> None:
        """Write this rank's rows into one file; return once it is on disk.

        Raises:
          AmpXlaError: a row is not finite. OSError: the disk refused.
        """
        tensors = {}
        for name, variable, _ in self._parts():
            values = tensors[name] = session.run(variable)
            # Minimum and maximum propagate NaN and need no array of booleans.
            if values.size and not (np.isfinite(values.min()) and np.isfinite(values.max())):
                raise AmpXlaError(f"{name} is not finite")
        saver.write_rows(folder, _FILES, tensors)

    def read(self, folder: Path, weights_only: bool = False) -> None:
        """Read this rank's rows from files of any number of ranks.

        Raises:
          AmpXlaError: files are missing, damaged, or of another table.
        """
        session = backend.session()
        for name, variable, rows in self._parts():
            if weights_only and not self.holds(variable):
                continue
            values = saver.read_rows(folder, _FILES, name, rows)
            # Fed: a graph with a Python function cannot be served by another program.
            with session.graph.as_default():
                fed = tf.compat.v1.placeholder(tf.float32, values.shape)
                session.run(variable.assign(fed, read_value=False), {fed: values})

    def _parts(self) -> Iterator[Tuple[str, Any, table.Rows]]:
        """Yield name in files, variable and rows."""
        for variable in self._tables:
            rows = table.rows(variable)
            yield rows.name, variable, rows
            if self._optimizer is None:
                continue
            for slot in self._optimizer.get_slot_names():
                yield f"{rows.name}.{slot}", self._optimizer.get_slot(variable, slot), rows
