"""The interface between training loops and all kinds of batches."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Sequence, Tuple

import numpy as np
from typing_extensions import Protocol

# The arrays of one step by name. The first axis of each array is the rows of the batch. Every batch
# has "weights", float32, 1 for a sample and 0 for padding; and "sample_ids", int64, -1 for padding.
Batch = Dict[str, np.ndarray]


class BatchSource(Protocol):
    """Batches whose order depends only on (seed, epoch). Each sample occurs once per epoch."""

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(rows, length) of each kind of batch; XLA compiles once per shape."""

    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch, the same in every epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on, without building those before."""


class MappedBatches:
    """``batches`` with a function applied to each batch; other attributes are those of ``batches``.

    Args:
      batches: follow ``BatchSource``.
      function: batch, epoch, step -> batch.
    """

    def __init__(self, batches: Any, function: Callable[[Batch, int, int], Any]) -> None:
        self._batches, self._function = batches, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of ``epoch`` from ``start`` on."""
        for step, batch in enumerate(self._batches.epoch(epoch, start), start):
            yield self._function(batch, epoch, step)


def sample_count(batch: Batch) -> int:
    """Return the number of samples in a batch, without padding."""
    return int((batch["sample_ids"] >= 0).sum())
