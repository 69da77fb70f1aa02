"""Peak memory of a training step as a function of its batch: a + b*B*L + c*B*L*L.

a: weights, optimizer, the program itself; b: activations of every token; c: attention scores of
every pair of tokens. Fitted on four probes, each a process of its own.
"""

from __future__ import annotations

import dataclasses
from typing import List, Sequence, Tuple

import numpy as np

from amp_xla.errors import AmpXlaError

Probe = Tuple[int, int, int]  # rows B, length L, bytes seen


@dataclasses.dataclass(frozen=True)
class MemoryModel:
    """``constant`` in bytes, ``token`` in bytes a token, ``pair`` in bytes a pair of tokens."""

    constant: float
    token: float
    pair: float

    def predict(self, rows: int, length: int) -> float:
        """Peak bytes of a step of ``rows`` x ``length``."""
        return self.constant + self.token * rows * length + self.pair * rows * length * length

    def largest(self, length: int, limit: float, multiple_of: int = 8) -> int:
        """The most rows of ``length`` that ``limit`` bytes hold, rounded down; 0 = not even one."""
        each = self.predict(1, length) - self.constant
        if each <= 0:
            raise AmpXlaError(f"the memory model {self} says that rows of {length} cost nothing")
        rows = int((limit - self.constant) // each)
        if rows >= multiple_of:
            rows -= rows % multiple_of
        return max(0, rows)

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.constant / 2**20:.0f} MiB + {self.token / 2**10:.1f} KiB a token + "
            f"{self.pair:.0f} bytes a pair of tokens"
        )


def probes(rows: int, length: int) -> List[Tuple[int, int]]:
    """Four (rows, length), smallest first, that tell the three terms apart."""
    if length < 16 or rows < 1:
        raise AmpXlaError(f"cannot probe memory with {rows} rows of {length}; 1 x 16 is the least")
    return [(rows, length // 2), (rows, length), (2 * rows, length // 2), (2 * rows, length)]


def unseen(rows: int, length: int) -> List[Tuple[int, int]]:
    """Six (rows, length) that ``probes`` does not try, within and beyond what it does."""
    return [
        (max(1, rows // 2), length),
        (rows, length * 3 // 4),
        (rows + rows // 2, length),
        (2 * rows, length // 4),
        (4 * rows, length // 2),
        (3 * rows, length),
    ]


def fit(seen: Sequence[Probe]) -> MemoryModel:
    """Least squares over the probes, no term below zero.

    Args:
      seen: at least three (rows, length, bytes) whose rows * length and rows * length**2 differ.

    Raises:
      AmpXlaError: the probes do not determine the model.
    """
    size = np.array([[1.0, b * n, float(b) * n * n] for b, n, _ in seen])
    value = np.array([float(v) for _, _, v in seen])
    scale = size.max(0)
    if len(seen) < 3 or np.linalg.matrix_rank(size / scale) < 3:
        raise AmpXlaError(f"{len(seen)} probes do not tell three terms apart: {list(seen)}")
    keep = [0, 1, 2]
    while True:
        found, *_ = np.linalg.lstsq(size[:, keep] / scale[keep], value, rcond=None)
        if (found >= 0).all():
            break
        # Noise: a term that seems to give memory back is none.
        keep.remove(keep[int(found.argmin())])
    out = np.zeros(3)
    out[keep] = found / scale[keep]
    return MemoryModel(*(float(x) for x in out))
