"""Tables and their optimizer slots in a run's checkpoints: each rank writes and reads its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.sok import saver, table

tf: Any = backend.tensorflow()


class TableShards:
    """What ``amp_xla.training.checkpoint.shards.Sharded`` asks for.

    Args:
      tables: variables of layers.
      optimizer: theirs, a Keras optimizer, whose slots they have once a step is built; None = they
        are only read.
    """

    def __init__(self, tables: Sequence[Any], optimizer: Optional[Any] = None) -> None:
        self._tables, self._optimizer = list(tables), optimizer

    def holds(self, variable: Any) -> bool:
        """True for one of the tables."""
        return any(variable is each for each in self._tables)

    def variables(self) -> List[Any]:
        """Tables and slots that there are by now."""
        return [variable for _, variable, _ in self._parts()]

    def shapes(self) -> Dict[str, str]:
        """Name -> ``float32[50000000,16]``, of whole tables, whatever number of ranks has them."""
        return {f"{n} (rows over ranks)": f"float32[{r.height},{r.width}]"
                for n, _, r in self._parts()}  # fmt: skip

    def write(self, folder: Path, session: Any) -> None:
        """Puts this rank's rows into files; returns when they are on the disk.

        Raises:
          AmpXlaError: a row is not finite. OSError: the disk refused.
        """
        for name, variable, rows in self._parts():
            values = session.run(variable)
            # Minimum and maximum carry NaN along and need no array of booleans.
            if values.size and not (np.isfinite(values.min()) and np.isfinite(values.max())):
                raise AmpXlaError(f"{name} is not finite")
            saver.write_rows(folder, rows, name, values)

    def read(self, folder: Path, weights_only: bool = False) -> None:
        """Takes this rank's rows out of what any number of ranks wrote.

        Raises:
          AmpXlaError: files are missing, or another table's.
        """
        session = backend.session()
        for name, variable, rows in self._parts():
            if weights_only and not self.holds(variable):
                continue
            values = saver.rows_in(folder, rows, name)
            # Fed, not read by a Python function: a graph with such a one can be served by no other.
            with session.graph.as_default():
                fed = tf.compat.v1.placeholder(tf.float32, values.shape)
                session.run(variable.assign(fed, read_value=False), {fed: values})

    def _parts(self) -> Iterator[Tuple[str, Any, table.Rows]]:
        """(name in files, variable, its rows)."""
        for variable in self._tables:
            rows = table.rows(variable)
            yield rows.name, variable, rows
            if self._optimizer is None:
                continue
            for slot in self._optimizer.get_slot_names():
                yield f"{rows.name}.{slot}", self._optimizer.get_slot(variable, slot), rows
