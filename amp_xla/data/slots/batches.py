"""Batches of samples with slots, in an order that is a function of (seed, epoch).

Lines are shuffled within blocks, and the blocks are gone through in order: a file of any size is
read from front to back. A value of a slot becomes the number of a table's row by a hash, which is
the same on every machine; different values may share a row.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.order import permutation
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.slots.lines import Columns, Lines
from amp_xla.errors import DataError

_BLOCK = 1 << 16  # lines that are shuffled together, about


def block_of(batch_size: int) -> int:
    """Lines of a block: whole batches, so that only an epoch's last batch may be short."""
    return max(1, _BLOCK // batch_size) * batch_size


class SlotBatches:
    """The batches of a file; ``BatchSource``'s protocol.

    Arrays: ``numbers``: float32 [B, columns], log(1 + x) of the line's; ``ids``: int64 [B, slots,
    values], rows of the table, -1 without a value; ``labels``, ``weights``: float32 [B];
    ``sample_ids``: int64 [B], number of the line.

    Args:
      lines: in blocks of ``block_of(batch_size)``.
      batch_size: samples of a batch, of all ranks together.
      rows: of the table that ids are hashed into.
      values: of a slot, at most; more are cut off.
      seed: decides the order.
      shuffle: False keeps the order of the file.
    """

    padding_share = 0.0

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
        """(rows, ids of a row) of the one kind of batch."""
        return [(self._batch, self._lines.columns.slots * self._values)]

    def __len__(self) -> int:
        return len(self._lines)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches an epoch; the same in every epoch."""
        return -(-len(self._lines) // self._batch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on; blocks before are not read."""
        batches_per_block = self._lines.block // self._batch
        first = start // batches_per_block
        begin = (start - first * batches_per_block) * self._batch
        for number, lines in enumerate(self._lines.blocks(first), first):
            order = np.arange(len(lines))
            if self._shuffle:
                order = permutation(len(lines), self._seed, epoch, number)
            for at in range(begin, len(lines), self._batch):
                yield self._made(lines, order[at : at + self._batch], number)
            begin = 0

    def _made(self, lines: List[bytes], chosen: np.ndarray, block: int) -> Batch:
        columns = self._lines.columns
        first = block * self._lines.block
        parsed = [
            parse(lines[i], columns, self._values, f"{self._lines.path}, line {first + i + 1}")
            for i in chosen.tolist()
        ]
        return batch(parsed, columns, self._rows, self._values, first + chosen, self._batch)


Parsed = Tuple[float, List[float], List[int]]


def parse(line: bytes, columns: Columns, values: int, called: str) -> Parsed:
    """(label, numbers, hashes of slots x values, -1 where there is none) of a line.

    Raises:
      DataError: a number is none.
    """
    fields = line.rstrip(b"\r\n").split(b"\t")
    try:
        numbers = [float(field or 0) for field in fields[1 : 1 + columns.numbers]]
    except ValueError as error:
        raise DataError(f"{called}: {error}; a number or nothing is wanted") from error
    if not all(map(math.isfinite, numbers)):
        raise DataError(f"{called}: a number is not finite")
    slots = fields[1 + columns.numbers :]
    if values == 1:
        return float(fields[0]), numbers, [zlib.crc32(v) if v else -1 for v in slots]
    hashes: List[int] = []
    for slot in slots:
        found = [zlib.crc32(v) for v in slot.split(b" ")[:values] if v]
        hashes += found + [-1] * (values - len(found))
    return float(fields[0]), numbers, hashes


def batch(
    parsed: Sequence[Parsed],
    columns: Columns,
    rows: int,
    values: int,
    sample_ids: np.ndarray,
    size: Optional[int] = None,
) -> Batch:
    """A batch of ``size`` rows, the last ones filled up.

    Args:
      rows: of the table.
      sample_ids: int64 [samples].
    """
    count = len(parsed)
    size = count if size is None else size
    numbers = np.zeros((size, columns.numbers), np.float32)
    hashes = np.full((size, columns.slots, values), -1, np.int64)
    labels = np.zeros(size, np.float32)
    ids = np.full(size, -1, np.int64)
    if count:
        labels[:count] = [label for label, _, _ in parsed]
        # Criteo has counts, a few of them -1 or -2.
        found = np.array([n for _, n, _ in parsed], np.float64).reshape(count, columns.numbers)
        numbers[:count] = np.log1p(np.maximum(found, 0.0))
        hashes[:count] = np.array([h for _, _, h in parsed], np.int64).reshape(count, -1, values)
        ids[:count] = sample_ids
    return {
        "numbers": numbers,
        "ids": _rows(hashes, rows),
        "labels": labels,
        "weights": (ids >= 0).astype(np.float32),
        "sample_ids": ids,
    }


def _rows(hashes: np.ndarray, rows: int) -> np.ndarray:
    """Hashes of values and the slots they stand in -> rows of one table for all slots."""
    slot = np.arange(1, hashes.shape[1] + 1, dtype=np.uint64)[None, :, None]
    with np.errstate(over="ignore"):
        mixed = _mixed(hashes.astype(np.uint64) + (slot << np.uint64(32)))
    return np.where(hashes < 0, -1, (mixed % np.uint64(rows)).astype(np.int64))


def _mixed(x: Any) -> Any:
    """Return SplitMix64's hash of uint64 numbers (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
