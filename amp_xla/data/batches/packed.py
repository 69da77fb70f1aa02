"""Several samples per row: next to no padding, and one shape.

On reviews of 5 to 256 tokens, the best six bucket lengths still need 15% padding, packed rows less
than 1%. The model keeps the samples of a row apart: position ids start at 0 in each sample,
attention stays inside a sample, and pooling is per sample (``amp_xla.models.packed``).

The histogram of lengths decides once which lengths share a row, by best fit as in Krell et al.,
"Efficient Sequence Packing without Cross-contamination" (arXiv:2107.02027). Each epoch draws which
samples of these lengths share a row, and in which step.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.buckets import Batches, filled
from amp_xla.data.batches.order import generator
from amp_xla.data.text.tokenizer import Encoded

GAIN = 0.001  # a further slot per row must save at least this share of the rows

Pattern = Tuple[int, ...]  # lengths of the samples in a row, longest first


class PackedBatches(Batches):
    """The packed batches of a corpus, in one shape; follows ``BatchSource``.

    Args:
      encoded: token ids of each sample.
      label_ids: int [samples]; None = no labels.
      length: tokens per row; the longest sample must fit.
      batch_size: average number of samples per step, which decides the number of rows.
      seed: decides the order.
      shuffle: False packs every epoch the same way.
      shape: rows per step and slots per row; None = chosen from the samples.

    Attributes:
      rows: R, rows of a step.
      slots: S, maximum samples per row, at least 2.
    """

    def __init__(
        self,
        encoded: Encoded,
        label_ids: Optional[np.ndarray] = None,
        length: int = 256,
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
        shape: Optional[Tuple[int, int]] = None,
    ) -> None:
        self._shape = shape
        super().__init__(encoded, label_ids, [length], batch_size, seed, shuffle)

    def _prepare(self) -> None:
        """Decide which lengths share a row."""
        counts = np.bincount(self.encoded.lengths).tolist()
        if self._shape is None:
            self.slots, patterns = _fewest_slots(counts, self.lengths[0])
            self.rows = max(1, round(len(patterns) * self.rows / len(self.encoded)))
        else:
            self.rows, self.slots = self._shape
            patterns = pack(counts, self.lengths[0], self.slots)
        # Sorted by length, the slots correspond to the samples one by one.
        sizes = np.zeros((len(patterns), self.slots), np.int64)
        for row, pattern in zip(sizes, patterns):
            row[: len(pattern)] = pattern
        order = np.argsort(sizes.reshape(-1), kind="stable")
        self._slots_by_length = order[len(order) - len(self.encoded) :]
        self._planned_rows = len(patterns)

    def like(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> PackedBatches:
        """Return unshuffled batches of other samples, such as dev texts, in the same shape."""
        shape = (self.rows, self.slots)
        return PackedBatches(encoded, label_ids, self.lengths[0], shuffle=False, shape=shape)

    def describe(self) -> str:
        """Return one line about padding, shape, and samples per step."""
        per_step = len(self.encoded) / self.steps_per_epoch()
        return f"{super().describe()}, packed, about {per_step:.0f} samples per step"

    def _plan(self, epoch: int) -> List[Tuple[int, np.ndarray]]:
        """Return (length, sample ids) for each batch of an epoch; ids are [rows, slots]."""
        source = generator(self._seed, epoch)
        samples = np.arange(len(self.encoded))
        if self._shuffle:
            source.shuffle(samples)
        members: np.ndarray = np.full(self._planned_rows * self.slots, -1, np.int64)
        by_length = np.argsort(self.encoded.lengths[samples], kind="stable")
        members[self._slots_by_length] = samples[by_length]
        # Empty rows are spread over the epoch, too.
        steps = -(-self._planned_rows // self.rows)
        members = filled(members.reshape(-1, self.slots), steps * self.rows)
        if self._shuffle:
            members = members[source.permutation(len(members))]
        return [(self.lengths[0], rows) for rows in np.split(members, steps)]


def pack(counts: Sequence[int], length: int, slots: int) -> List[Pattern]:
    """Pack counts[n] samples of each length n into rows by best fit, longest samples first.

    Rows with the same lengths are handled together, so the time does not depend on the number of
    samples.

    Args:
      counts: number of samples of each length, from length 0 on.
      length: tokens per row.
      slots: maximum samples per row.

    Returns:
      The lengths of the samples in each row.
    """
    # by_room[n]: the patterns with room for n more tokens -> their number of rows.
    by_room: List[Dict[Pattern, int]] = [{} for _ in range(length + 1)]
    for size in range(len(counts) - 1, 0, -1):
        left = int(counts[size])
        while left:
            room = next((room for room in range(size, length + 1) if by_room[room]), length)
            pattern, rows = by_room[room].popitem() if by_room[room] else ((), left)
            copies = min(room // size, slots - len(pattern), left)
            filled_rows = min(rows, left // copies)
            if pattern and rows > filled_rows:
                by_room[room][pattern] = rows - filled_rows
            pattern += (size,) * copies
            # A row without an empty slot has no room.
            room = room - size * copies if len(pattern) < slots else 0
            by_room[room][pattern] = by_room[room].get(pattern, 0) + filled_rows
            left -= copies * filled_rows
    return [
        pattern
        for rows_by_pattern in by_room
        for pattern, rows in rows_by_pattern.items()
        for _ in range(rows)
    ]


def _fewest_slots(counts: Sequence[int], length: int) -> Tuple[int, List[Pattern]]:
    """Return the smallest number of slots that costs at most 0.1% more rows, and these rows."""
    free = max(2, length // int(np.flatnonzero(counts)[0]))
    best = len(pack(counts, length, free))
    for slots in range(2, free):
        patterns = pack(counts, length, slots)
        if len(patterns) <= best * (1 + GAIN):
            return slots, patterns
    return free, pack(counts, length, free)
