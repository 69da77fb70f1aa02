"""Several samples in one row: next to no padding, with one shape.

Length buckets have a floor: on reviews of 5 to 256 tokens the best six lengths still pad 15%,
and twenty are needed for 5%. Rows that hold several samples end to end need one shape and pad
less than 1%. The model must then keep the samples of a row apart: position ids start again at 0,
attention stays inside a sample, pooling is per sample (`amp_xla.training.packed`).

The plan of an epoch, which lengths share a row, is made once from the histogram of lengths, as in
Krell et al., "Efficient Sequence Packing without Cross-contamination" (arXiv:2107.02027), here by
best fit. Which sample of that length stands there, and when the row's turn comes, is drawn by
counter from (seed, epoch). Rows are dealt so that every step has about as many samples and the
same mixture of lengths. A step is made without those before it.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.errors import DataError
from amp_xla.data.order import permutation
from amp_xla.data.tokenizer import Encoded

SAMPLE_ORDER, ROW_ORDER = 0, 1  # streams of the order; row r of a step uses ROW_ORDER + r
GAIN = 0.002  # another slot a row must save this share of all tokens, or it is not worth its cost

Pattern = Tuple[int, ...]  # lengths of the samples of a row, longest first


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """One step: R rows of L tokens, at most S samples a row; a sample is one of R * S slots.

    token_ids, segment_ids, position_ids: int32 [R, L]; positions count from 0 in every sample.
    slots: int32 [R, L], which of its row's S samples a token belongs to, -1 for padding.
    labels: int32 [R * S], 0 in empty slots, or None; weights: float32 [R * S], 1 for a sample, 0
    for an empty slot; sample_ids: int64 [R * S], -1 for an empty slot. Slot s of row r is entry
    r * S + s. index: the step within the epoch.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    position_ids: np.ndarray
    slots: np.ndarray
    labels: Optional[np.ndarray]
    weights: np.ndarray
    sample_ids: np.ndarray
    index: int


class PackedBatches:
    """The packed batches of a corpus: one shape, and ``Batches``' protocol.

    Args:
      encoded: the samples' tokens.
      label_ids: int [samples]; None = no labels.
      length: tokens of a row, at least the longest sample's.
      batch_size: samples of a step on the average; the number of rows is chosen for it. How many
        samples a step has varies a little.
      seed: decides the order.
      shuffle: False packs every epoch alike.
      slots: most samples of a row; None = the fewest that cost at most 0.2% more rows.
      rows: rows of a step; None = chosen by ``batch_size``.

    Raises:
      DataError: empty corpus, a sample longer than a row, a size that is not positive.
    """

    def __init__(
        self,
        encoded: Encoded,
        label_ids: Optional[np.ndarray] = None,
        length: int = 256,
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
        slots: Optional[int] = None,
        rows: Optional[int] = None,
    ) -> None:
        for name, size in (("batch_size", batch_size), ("slots", slots), ("rows", rows)):
            if size is not None and size < 1:
                raise DataError(f"{name}={size}; it must be positive")
        if not len(encoded):
            raise DataError("no samples to make batches of")
        if label_ids is not None and len(label_ids) != len(encoded):
            raise DataError(f"{len(encoded):,} samples but {len(label_ids):,} labels")
        sizes = encoded.lengths
        longest = int(sizes.max())
        if longest > length:
            raise DataError(
                f"rows of {length} tokens, and a sample has {longest}; cut samples with max_length"
            )
        self._seed, self._shuffle = int(seed), shuffle
        self._encoded, self._sizes = encoded, sizes
        self._labels = None if label_ids is None else np.asarray(label_ids, np.int32)
        self._two_segments = bool((encoded.first_lengths != sizes).any())

        patterns = _plan(np.bincount(sizes, minlength=length + 1).tolist(), length, slots)
        self.length = length
        self.slots = slots or max(len(pattern) for pattern, _ in patterns)
        self._row_sizes = _rows(patterns, self.slots)
        self.rows = rows or max(1, round(batch_size * len(self._row_sizes) / len(sizes)))
        # The plan's slots and the samples, both sorted by length, stand opposite each other.
        flat = self._row_sizes.reshape(-1)
        self._slots_by_length = np.argsort(flat, kind="stable")[int((flat == 0).sum()) :]

    def like(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> PackedBatches:
        """Other samples, such as those to evaluate on, in batches of the same shape, unshuffled."""
        return PackedBatches(
            encoded, label_ids, self.length, shuffle=False, slots=self.slots, rows=self.rows
        )

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches an epoch; the same in every epoch."""
        return -(-len(self._row_sizes) // self.rows)

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(rows, length): one."""
        return [(self.rows, self.length)]

    @property
    def padding_share(self) -> float:
        """Share of an epoch's tokens that is padding, empty rows of the last batch included."""
        fed = self.steps_per_epoch() * self.rows * self.length
        return 1.0 - int(self._sizes.sum()) / fed

    def describe(self) -> str:
        """One line: padding, shape, samples a step."""
        mean = len(self._sizes) / self.steps_per_epoch()
        return (
            f"padding {self.padding_share:.1%}, 1 shape: {self.rows}x{self.length}, packed, about "
            f"{mean:.0f} samples a step"
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[PackedBatch]:
        """The batches of `epoch` from step `start` on; earlier ones are not made."""
        steps = self.steps_per_epoch(epoch)
        if not 0 <= start <= steps:
            raise ValueError(f"start is step {start}; epoch {epoch} has steps 0 to {steps}")
        return self._iterate(epoch, start, steps)

    def _iterate(self, epoch: int, start: int, steps: int) -> Iterator[PackedBatch]:
        plan = self._epoch_rows(epoch)
        members = self._epoch_members(epoch)
        for step in range(start, steps):
            rows = plan[plan[:, step] >= 0, step]
            yield self._assemble(rows, members[rows], step)

    def _epoch_rows(self, epoch: int) -> np.ndarray:
        """int64 [rows of a step, steps]: rows of the plan, -1 where they have run out.

        Sorted by number of samples and cut into as many strata as a step has rows: each step
        takes one row of each.
        """
        steps = self.steps_per_epoch()
        flat = np.full(self.rows * steps, -1, np.int64)
        flat[: len(self._row_sizes)] = np.argsort(-(self._row_sizes > 0).sum(1), kind="stable")
        strata = flat.reshape(self.rows, steps)
        if not self._shuffle:
            return strata
        orders = [permutation(steps, self._seed, epoch, ROW_ORDER + r)[:] for r in range(self.rows)]
        return np.stack([stratum[order] for stratum, order in zip(strata, orders)])

    def _epoch_members(self, epoch: int) -> np.ndarray:
        """int64 [rows of the plan, slots]: sample ids, -1 in empty slots."""
        order = np.arange(len(self._sizes))
        if self._shuffle:
            order = permutation(len(self._sizes), self._seed, epoch, SAMPLE_ORDER).at_once()
        members = np.full(self._row_sizes.size, -1, np.int64)
        members[self._slots_by_length] = order[np.argsort(self._sizes[order], kind="stable")]
        return members.reshape(self._row_sizes.shape)

    def _assemble(self, plan_rows: np.ndarray, members: np.ndarray, step: int) -> PackedBatch:
        sizes = np.zeros((self.rows, self.slots), np.int64)
        sizes[: len(plan_rows)] = self._row_sizes[plan_rows]
        sample_ids = np.full((self.rows, self.slots), -1, np.int64)
        sample_ids[: len(plan_rows)] = members

        real = sample_ids >= 0
        samples, lengths = sample_ids[real], sizes[real]
        row, slot = np.nonzero(real)
        begin = row * self.length + (np.cumsum(sizes, axis=1) - sizes)[real]
        # Token k of the step: which sample, which position in it.
        owner = np.repeat(np.arange(len(samples)), lengths)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        target = begin[owner] + position

        def grid(values: np.ndarray, empty: int = 0) -> np.ndarray:
            out = np.full(self.rows * self.length, empty, np.int32)
            out[target] = values
            return out.reshape(self.rows, self.length)

        tokens = self._encoded.token_ids[self._encoded.offsets[samples][owner] + position]
        if self._two_segments:
            segments = grid(position >= self._encoded.first_lengths[samples][owner])
        else:
            segments = np.zeros((self.rows, self.length), np.int32)
        labels = None
        if self._labels is not None:
            labels = np.zeros(self.rows * self.slots, np.int32)
            labels[real.reshape(-1)] = self._labels[samples]
        return PackedBatch(
            token_ids=grid(tokens),
            segment_ids=segments,
            position_ids=grid(position),
            slots=grid(slot[owner], -1),
            labels=labels,
            weights=real.reshape(-1).astype(np.float32),
            sample_ids=sample_ids.reshape(-1),
            index=step,
        )


def _plan(counts: Sequence[int], length: int, slots: Optional[int]) -> List[Tuple[Pattern, int]]:
    """Rows as (lengths in it, how many rows are like that)."""
    if slots is not None:
        return best_fit(counts, length, slots)
    shortest = next(size for size, count in enumerate(counts) if count)
    most = length // max(1, shortest)
    best = best_fit(counts, length, most)
    free = sum(rows for _, rows in best)
    for slots in range(1, most):
        plan = best_fit(counts, length, slots)
        if sum(rows for _, rows in plan) <= free * (1 + GAIN):
            return plan
    return best


def best_fit(counts: Sequence[int], length: int, slots: int) -> List[Tuple[Pattern, int]]:
    """Packs counts[l] samples of every length l into rows of `length`, at most `slots` a row.

    Best fit decreasing on the histogram: equal rows are handled as one, so the work depends on
    `length`, not on the number of samples.
    """
    open_rows: Dict[int, Dict[Pattern, int]] = collections.defaultdict(dict)  # by room left
    full: Dict[Pattern, int] = collections.Counter()

    def put(pattern: Pattern, rows: int) -> None:
        room = length - sum(pattern)
        if room == 0 or len(pattern) == slots:
            full[pattern] += rows
        else:
            open_rows[room][pattern] = open_rows[room].get(pattern, 0) + rows

    for size in range(length, 0, -1):
        left = int(counts[size]) if size < len(counts) else 0
        while left:
            room = next((r for r in range(size, length) if open_rows.get(r)), None)
            if room is None:  # fill new rows with as many of this size as go in
                many = min(length // size, slots, left)
                put((size,) * many, left // many)
                left -= left // many * many
            else:
                pattern, rows = open_rows[room].popitem()
                taken = min(rows, left)
                if rows > taken:
                    open_rows[room][pattern] = rows - taken
                put(pattern + (size,), taken)
                left -= taken
    for patterns in open_rows.values():
        for pattern, rows in patterns.items():
            full[pattern] = full.get(pattern, 0) + rows
    return sorted(full.items(), reverse=True)


def _rows(patterns: Sequence[Tuple[Pattern, int]], slots: int) -> np.ndarray:
    """int64 [rows, slots]: length of the sample in every slot, 0 = empty."""
    table = np.zeros((len(patterns), slots), np.int64)
    for i, (pattern, _) in enumerate(patterns):
        table[i, : len(pattern)] = pattern
    return np.repeat(table, [rows for _, rows in patterns], axis=0)
