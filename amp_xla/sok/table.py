"""Which rows of a table a rank has, their initial values, and which variables are tables."""

from __future__ import annotations

from typing import Any, Iterable, List, Tuple

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.errors import AmpXlaError
from amp_xla.precision.compat import sok
from amp_xla.sok import ranks

_BLOCK = 1 << 16  # rows of the whole table drawn at a time


class Rows:
    """This rank's rows of a table: row % ranks == rank. The whole table has ``height`` rows."""

    def __init__(self, height: int, width: int, name: str) -> None:
        if height < 1 or width < 1:
            raise AmpXlaError(
                f"a table has {height} rows of {width} numbers; allowed: 1 or more of both"
            )
        self.height, self.width, self.name = int(height), int(width), name
        self.rank, self.size = ranks.place()
        self.here = len(range(self.rank, self.height, self.size))

    def drawn(self, seed: int) -> Any:
        """Draw this rank's initial rows, uniform in -0.05 to 0.05 as in Keras, float32.

        Values depend on seed and row number, not on the number of ranks.
        """
        values = np.empty((self.here, self.width), np.float32)
        done = 0
        for block, first in enumerate(range(0, self.height, _BLOCK)):
            rows = min(_BLOCK, self.height - first)
            drawn = generator(seed, block).uniform(-0.05, 0.05, (rows, self.width))
            part = drawn[(self.rank - first) % self.size :: self.size]
            values[done : done + len(part)] = part
            done += len(part)
        return values

    def taken(self, whole: Any) -> Any:
        """Return this rank's rows out of the values of a whole table."""
        if tuple(whole.shape) != (self.height, self.width):
            raise AmpXlaError(
                f"values of shape {tuple(whole.shape)} do not fit a table of "
                f"[{self.height}, {self.width}]"
            )
        return np.ascontiguousarray(np.asarray(whole, np.float32)[self.rank :: self.size])


def rows(variable: Any) -> Rows:
    """Return the ``Rows`` of a table's variable; raise AmpXlaError for other variables."""
    if not is_table(variable):
        raise AmpXlaError(f"{variable.name} is not a table of amp_xla.sok's layers")
    table_rows: Rows = variable._amp_xla_rows
    return table_rows


def is_table(variable: Any) -> bool:
    """Return True if ``variable`` is the table of a layer of this package."""
    return hasattr(variable, "_amp_xla_rows")


def split_embedding_variable_from_others(
    variables: Iterable[Any],
) -> Tuple[List[Any], List[Any]]:
    """Return two lists in the order of ``variables``: tables of this package, and the others.

    The variable of a Keras ``Embedding`` is not a table.
    """
    return sok.split_embedding_variable_from_others(variables, is_table)
