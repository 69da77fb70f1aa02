"""Peak memory of a training step as a function of its batch: a + b*B*L + c*B*L*L.

a: weights, optimizer, the program itself; b: activations of every token; c: attention scores of
every pair of tokens. Fitted on four probes; the largest batch is searched for with more of them.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Callable, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.errors import AmpXlaError

Probe = Tuple[int, int, int]  # rows B, length L, bytes seen

FAR = 4  # how many times the rows of the furthest probe a model is believed
JUMP = 16  # how many times those rows are tried at most: a slope of noise must not take the machine
NEAR = 0.05  # of the prediction: a peak that close to it, and within the limit, ends the search
TRIES = 6  # batches beyond the four probes


class DoesNotFit(AmpXlaError):
    """A batch for which the memory did not suffice."""


@dataclasses.dataclass(frozen=True)
class MemoryModel:
    """``constant`` in bytes, ``token`` in bytes a token, ``pair`` in bytes a pair of tokens."""

    constant: float
    token: float
    pair: float

    def predict(self, rows: int, length: int) -> float:
        """Peak bytes of a step of ``rows`` x ``length``."""
        return self.constant + self.token * rows * length + self.pair * rows * length * length

    def row(self, length: int) -> float:
        """Bytes that each row of ``length`` adds."""
        return self.predict(1, length) - self.constant

    def largest(self, length: int, limit: float, multiple_of: int = 8) -> int:
        """The most rows of ``length`` that ``limit`` bytes hold, rounded down; 0 = not even one."""
        each = self.row(length)
        if each <= 0:
            raise AmpXlaError(f"the memory model {self} says that rows of {length} cost nothing")
        return _round_down(int((limit - self.constant) // each), multiple_of)

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.constant / 2**20:.0f} MiB + {self.token / 2**10:.1f} KiB a token + "
            f"{self.pair:.0f} bytes a pair of tokens"
        )


def _round_down(rows: int, multiple_of: int = 8) -> int:
    if rows >= multiple_of:
        rows -= rows % multiple_of
    return max(0, rows)


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


@dataclasses.dataclass(frozen=True)
class Largest:
    """The most rows that were run and stayed within the limit.

    Attributes:
      rows, length: the batch.
      predicted, seen: peak bytes, by the model before it was run, and then.
      model: fitted on what was seen until then.
    """

    rows: int
    length: int
    predicted: float
    seen: int
    model: MemoryModel


def largest_batch(
    measure: Callable[[int, int], int], rows: int, length: int, limit: float
) -> Optional[Largest]:
    """Searches for the most rows of ``length`` whose peak is within ``limit`` bytes.

    Every batch that is tried refines the model: an error of small probes grows with the distance,
    and on a CPU the peak of one and the same step differs by a tenth from run to run, because the
    C library keeps what was freed in pieces (seen with TensorFlow 1.15, not with 2.17).

    Args:
      measure: peak bytes of (rows, length); raises ``DoesNotFit``.
      rows: where to begin; halved until all four probes fit.
      length: tokens of a row.
      limit: bytes.

    Returns:
      What was found, or None if nothing that was tried fits.
    """
    while True:
        try:
            seen = [(b, n, measure(b, n)) for b, n in probes(rows, length)]
            break
        except DoesNotFit:
            if rows == 1:
                return None
            rows //= 2
    model, failures, ceiling = fit(seen), 0, sys.maxsize
    fitting = [
        Largest(b, n, model.predict(b, n), peak, model)
        for b, n, peak in seen
        if n == length and peak <= limit
    ]
    for _ in range(TRIES):
        costs = model.row(length) > 0
        most = min(model.largest(length, limit) if costs else sys.maxsize, ceiling)
        if not most or any((b, n) == (most, length) for b, n, _ in seen):
            break
        furthest = max(b for b, _, _ in seen)
        # Far from what was seen, half of it is answer enough to aim the next try.
        tried = most if most <= FAR * furthest else _round_down(min(most // 2, JUMP * furthest))
        predicted = model.predict(tried, length)
        try:
            peak = measure(tried, length)
        except DoesNotFit:
            failures += 1
            fits = max((found.rows for found in fitting), default=0)
            # Memory may end a little before the limit, in pieces; or else anywhere: then bisect.
            ceiling = _round_down(tried * 9 // 10 if failures == 1 else (fits + tried) // 2)
            continue
        seen.append((tried, length, peak))
        model = fit(seen)
        if peak > limit:
            ceiling = _round_down(tried * 19 // 20)
            continue
        fitting.append(Largest(tried, length, predicted, peak, model))
        if tried == most and abs(peak / predicted - 1) <= NEAR:
            break
    return max(fitting, key=lambda found: found.rows, default=None)
