"""The interface of batches for training loops, and each rank's part of a batch.

The order of samples is a function of (seed, epoch), not of the number of ranks. With ``n`` ranks
of ``m`` micro-batches each, micro-batch ``k`` of rank ``r`` has rows ``r * m + k``, ``r * m + k +
n * m``, ... of a batch. If texts have windows, these are numbers of groups instead of rows.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
from typing_extensions import Protocol

# The arrays of one step by name. Their first axis is rows (in "windows" groups); SHARE is a scalar.
# Every batch has "weights", float32, 0 for padding, and "sample_ids", int64, -1 for padding.
Batch = Dict[str, np.ndarray]
SHARE = "share"  # a float32 scalar: the micro-batch's share of the weight of the whole batch
# Values in rows of padding; other arrays have 0.
_FILLER = {"sample_ids": -1, "slots": -1, "owners": -1, "windows": -1}


class BatchSource(Protocol):
    """Batches whose order depends only on (seed, epoch). Each sample occurs once per epoch."""

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(rows, length) of each kind of batch; XLA compiles once per shape."""

    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch, the same in every epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from step ``start`` on; do not build earlier batches."""


class MappedBatches:
    """The results of ``function(batch, epoch, step)`` for each batch of ``batches``.

    All other attributes are the attributes of ``batches``, which is a ``BatchSource``.
    """

    def __init__(self, batches: Any, function: Callable[[Batch, int, int], Any]) -> None:
        self._batches, self._function = batches, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of ``epoch`` from step ``start`` on."""
        for step, batch in enumerate(self._batches.epoch(epoch, start), start):
            yield self._function(batch, epoch, step)


def sample_count(batch: Batch) -> int:
    """Return the number of samples in a batch, without padding."""
    return int((batch["sample_ids"] >= 0).sum())


class SharedBatch(NamedTuple):
    """A batch of all ranks, and the micro-batches of one rank.

    A micro-batch has one more array, ``SHARE``: its share of the weight of the whole batch.
    """

    whole: Batch
    micro_batches: List[Batch]


class RankShard(MappedBatches):
    """Each batch of ``whole`` as a ``SharedBatch`` for one rank; follows ``BatchSource``.

    The rank's rows of a batch are divided into ``micro_batches`` micro-batches.
    """

    def __init__(self, whole: BatchSource, rank: int, size: int, micro_batches: int = 1) -> None:
        super().__init__(whole, self._shared)
        self.whole = whole
        self._numbers = range(rank * micro_batches, (rank + 1) * micro_batches)
        self._shards = size * micro_batches

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """Return (rows, length) of each kind of micro-batch."""
        group = getattr(self.whole, "group", 1)
        shapes = self.whole.shapes
        return [(-(-rows // group // self._shards) * group, length) for rows, length in shapes]

    def _shared(self, batch: Batch, *_: int) -> SharedBatch:
        return SharedBatch(batch, [self._shard(batch, number) for number in self._numbers])

    def _shard(self, batch: Batch, number: int) -> Batch:
        # The windows of a text stay together (``windows.WindowBatches``).
        groups = len(batch.get("windows", batch["weights"]))
        shard = {name: self._rows(name, array, number, groups) for name, array in batch.items()}
        share = shard["weights"].sum() / max(float(batch["weights"].sum()), 1e-6)
        return {**shard, SHARE: np.array(share, np.float32)}

    def _rows(self, name: str, array: np.ndarray, number: int, groups: int) -> np.ndarray:
        size, share = len(array) // groups, -(-groups // self._shards)
        rows = array.reshape(groups, size, *array.shape[1:])[number :: self._shards]
        padding = np.full((share - len(rows), *rows.shape[1:]), _FILLER.get(name, 0), array.dtype)
        return np.concatenate([rows, padding]).reshape(share * size, *array.shape[1:])


def whole(batches: Any) -> Any:
    """Return the ``whole`` of a ``RankShard`` or ``SharedBatch``, and other batches unchanged."""
    return getattr(batches, "whole", batches)


def micro_batches(batch: Any) -> Sequence[Batch]:
    """Return the micro-batches of a ``SharedBatch``; any other batch is one micro-batch."""
    return batch.micro_batches if isinstance(batch, SharedBatch) else [batch]
