"""Records the range of a tensor.

The recording operation is a Python function, because fetched tensors would stay in memory, and
those of a branch that is not taken cannot be fetched.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Tuple

import numpy as np

from amp_xla.backend import tf

LARGEST = 65504.0  # largest float16
OVERFLOW = 65520.0  # float16 rounds this and larger numbers to infinity
ROUNDS_TO_ZERO = 2.0**-25  # half of the smallest float16

Tensor = Tuple[str, int]  # node name, output


@dataclasses.dataclass
class Range:
    """The values of a tensor, over all times that it was computed.

    Attributes:
      low, high: smallest and largest finite element; 0 if there are none.
      nan, infinite: number of elements that are NaN, and that are infinite.
      nonzero: number of elements that are not zero.
      vanishing: number of nonzero elements that are zero in float16.
      size: number of elements.
    """

    low: float = 0.0
    high: float = 0.0
    nan: int = 0
    infinite: int = 0
    nonzero: int = 0
    vanishing: int = 0
    size: int = 0

    @property
    def finite(self) -> bool:
        """True if there is no NaN and no infinity."""
        return not (self.nan or self.infinite)

    @property
    def largest(self) -> float:
        """The largest magnitude among the finite elements."""
        return max(abs(self.low), abs(self.high))

    def add(self, values: Any) -> None:
        """Add the elements of an array."""
        finite = values[np.isfinite(values)]
        nan = int(np.isnan(values).sum())
        nonzero = np.count_nonzero(values)
        known = [] if self.size == self.nan + self.infinite else [self.low, self.high]
        self.nan += nan
        self.infinite += values.size - finite.size - nan
        self.nonzero += nonzero
        small = np.count_nonzero(np.abs(finite) <= ROUNDS_TO_ZERO)
        self.vanishing += small - (values.size - nonzero)
        self.size += values.size
        if finite.size:
            known += [float(finite.min()), float(finite.max())]
            self.low, self.high = min(known), max(known)

    def __str__(self) -> str:
        text = f"{self.low:.4g} .. {self.high:.4g}"
        counts = [(self.nan, "NaN"), (self.infinite, "infinite")]
        bad = " and ".join(f"{count} {word}" for count, word in counts if count)
        return text + (f", {bad} of {self.size} elements" if bad else "")


def recording(tensor: Any) -> Tuple[Any, Range]:
    """Return an operation that records a tensor, and the record."""
    record = Range()

    def look(values: Any) -> Any:
        record.add(np.asarray(values))
        return ()

    return tf.numpy_function(look, [tensor], []), record
