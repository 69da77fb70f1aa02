"""Batches of samples with slots, in an order that is a function of (seed, epoch).

Lines are shuffled within blocks, and blocks are read in order, so a file of any size is read from
front to back. A hash, the same on every machine, turns a value of a slot into the number of a row
of the table; different values may share a row.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.order import permutation
from amp_xla.data.batches.protocol import Batch
from amp_xla.tasks.recommendation.data.lines import Columns, Lines, Parsed, parse_line

_BLOCK = 1 << 16  # approximate number of lines that are shuffled together


def block_of(batch_size: int) -> int:
    """Return the lines per block, a multiple of ``batch_size``, so only the last batch is short."""
    return max(1, _BLOCK // batch_size) * batch_size


class SlotBatches:
    """The batches of a file; follows ``BatchSource``. ``batch_of`` describes the arrays.

    Args:
      lines: lines in blocks of ``block_of(batch_size)``.
      batch_size: samples per batch, over all ranks.
      rows: number of rows of the table.
      values: maximum values per slot; further values are dropped.
      seed: decides the order.
      shuffle: False keeps the order of the file.
    """

    def __init__(
        self,
        lines: Lines,
        batch_size: int,
        rows: int,
        values: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._lines, self._batch, self._rows, self._values = lines, batch_size, rows, values
        self._seed, self._shuffle = seed, shuffle

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(samples, ids per sample), the same for all batches."""
        return [(self._batch, self._lines.columns.slots * self._values)]

    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self._lines) // self._batch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on, without reading earlier blocks."""
        columns, batches_per_block = self._lines.columns, self._lines.block // self._batch
        first = start // batches_per_block
        begin = (start - first * batches_per_block) * self._batch
        for number, lines in enumerate(self._lines.blocks(first), first):
            order = np.arange(len(lines))
            if self._shuffle:
                order = permutation(len(lines), self._seed, epoch, number)
            for at in range(begin, len(lines), self._batch):
                chosen = order[at : at + self._batch]
                parsed = [parse_line(lines[i], columns, self._values) for i in chosen]
                ids = number * self._lines.block + chosen
                yield batch_of(parsed, columns, self._rows, self._values, ids, self._batch)
            begin = 0


def batch_of(
    parsed: Sequence[Parsed],
    columns: Columns,
    rows: int,
    values: int,
    sample_ids: np.ndarray,
    size: int,
) -> Batch:
    """Return a batch of ``size`` samples, filled up with padding.

    Args:
      parsed: at least one sample.
      columns: columns of a sample.
      rows: number of rows of the table.
      values: maximum values per slot.
      sample_ids: int64 [samples].
      size: B, samples per batch.

    Returns:
      ``numbers``: float32 [B, numbers], log(1 + x) of each number; ``ids``: int64 [B, slots,
      values], rows of the table, -1 for missing values; ``labels``, ``weights``: float32 [B];
      ``sample_ids``: int64 [B].
    """
    count = len(parsed)
    labels = np.zeros(size, np.float32)
    labels[:count] = [label for label, _, _ in parsed]
    numbers = np.zeros((size, columns.numbers), np.float32)
    # Criteo's numbers are counts, but a few are -1 or -2.
    raw = np.array([row for _, row, _ in parsed], np.float64).reshape(count, columns.numbers)
    numbers[:count] = np.log1p(np.maximum(raw, 0.0))
    hashes = np.full((size, columns.slots, values), -1, np.int64)
    hashes[:count] = np.array([row for _, _, row in parsed], np.int64).reshape(count, -1, values)
    ids = np.full(size, -1, np.int64)
    ids[:count] = sample_ids
    return {
        "numbers": numbers,
        "ids": _rows(hashes, rows),
        "labels": labels,
        "weights": (ids >= 0).astype(np.float32),
        "sample_ids": ids,
    }


def _rows(hashes: np.ndarray, rows: int) -> np.ndarray:
    """Return rows of the table for hashes of values; a value has another row in each slot."""
    slot = np.arange(1, hashes.shape[1] + 1, dtype=np.uint64)[None, :, None]
    with np.errstate(over="ignore"):
        mixed = _mixed(hashes.astype(np.uint64) + (slot << np.uint64(32)))
    return np.where(hashes < 0, -1, (mixed % np.uint64(rows)).astype(np.int64))


def _mixed(x: Any) -> Any:
    """Return SplitMix64's hash of uint64 numbers (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
