"""Batches of few shapes, in an order that is a function of (seed, epoch) and nothing else.

XLA compiles a program for each input shape, and a GPU pays for padding as for text. So samples
go into a few length buckets, the lengths chosen to waste least; every batch is full, the last one
of a bucket filled up with rows of weight 0. Nothing is dropped: each sample is seen once an epoch.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.errors import DataError
from amp_xla.data.order import permutation
from amp_xla.data.tokenizer import Encoded

_BATCH_STREAM = 1 << 20  # the order of batches; buckets use streams 0, 1, ...


def choose_lengths(
    lengths: Sequence[int],
    max_shapes: int,
    multiple_of: int = 8,
    max_length: Optional[int] = None,
) -> List[int]:
    """At most ``max_shapes`` bucket lengths with the fewest padded tokens in all.

    Exact, by dynamic programming over the histogram of ``lengths`` (each rounded up to
    ``multiple_of``): O(h * h * max_shapes) for h different rounded lengths.

    Args:
      lengths: tokens of each sample.
      max_shapes: how many different lengths are allowed.
      multiple_of: bucket lengths are multiples of this; tensor cores want 8.
      max_length: cut length of the corpus; the longest bucket never exceeds it, rounded up.

    Returns:
      Ascending bucket lengths; the last holds the longest sample.

    Raises:
      DataError: no samples, or a number that is not positive.
    """
    values = np.asarray(lengths, np.int64)
    if not values.size:
        raise DataError("no samples to choose lengths for")
    if max_shapes < 1 or multiple_of < 1:
        raise DataError(f"shapes={max_shapes}, multiple_of={multiple_of}; both must be positive")
    if max_length is not None:
        values = np.minimum(values, max_length)
    rounded = -(-np.maximum(values, 1) // multiple_of) * multiple_of
    ends, counts = np.unique(rounded, return_counts=True)
    if len(ends) <= max_shapes:
        return [int(end) for end in ends]
    samples = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: fewest bucket tokens for the first j lengths with the shapes used so far. The text
    # itself is the same in every choice, so bucket tokens stand for padded tokens.
    best = np.concatenate([[0], samples[1:] * ends]).astype(np.float64)
    choice: List[np.ndarray] = []
    for _ in range(max_shapes - 1):
        cost = best[:-1, None] + (samples[None, 1:] - samples[:-1, None]) * ends[None, :]
        cost[np.tril_indices(len(ends), -1)] = np.inf
        choice.append(cost.argmin(0))
        best = np.concatenate([[0], cost.min(0)])
    chosen, end = [], len(ends) - 1
    for starts in reversed(choice):
        chosen.append(int(ends[end]))
        if starts[end] == 0:
            return chosen[::-1]
        end = int(starts[end]) - 1
    chosen.append(int(ends[end]))
    return chosen[::-1]


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step's arrays: B rows of L tokens.

    token_ids, segment_ids: int32 [B, L]; labels: int32 [B] or None; weights: float32 [B], 1 for a
    sample and 0 for a row that fills up; sample_ids: int64 [B], -1 for such a row; index: the
    step within the epoch.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    labels: Optional[np.ndarray]
    weights: np.ndarray
    sample_ids: np.ndarray
    index: int


class _Bucket(NamedTuple):
    """``rows`` x ``length``; ``members`` are its own samples, ``carried`` more come from below."""

    length: int
    rows: int
    members: np.ndarray
    carried: int
    kept: int  # samples batched here; the rest of members + carried goes one bucket up

    @property
    def batches(self) -> int:
        return -(-self.kept // self.rows)


class Batches:
    """The batches of a corpus.

    Args:
      encoded: the samples' tokens.
      label_ids: int [samples]; None = no labels.
      lengths: ascending bucket lengths; longer samples are an error.
      batch_size: rows of a batch; with ``token_budget`` rows of a batch of the longest bucket.
      seed: decides the order.
      shuffle: False keeps the order of the corpus within each bucket, shortest bucket first.
      token_budget: batches of shorter buckets get more rows, in multiples of 8, so that each has
        about as many tokens as one of the longest bucket.
      drop_remainder: leaves out batches that would need rows to fill them up.

    Raises:
      DataError: empty corpus, a sample longer than every bucket, a size that is not positive.
    """

    def __init__(
        self,
        encoded: Encoded,
        label_ids: Optional[np.ndarray] = None,
        lengths: Sequence[int] = (96,),
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
        token_budget: bool = False,
        drop_remainder: bool = False,
    ) -> None:
        if not len(encoded):
            raise DataError("no samples to make batches of")
        if batch_size < 1:
            raise DataError(f"batch_size={batch_size}; it must be positive")
        self._encoded, self._labels = encoded, label_ids
        self._seed, self._shuffle, self._drop = seed, shuffle, drop_remainder
        buckets = sorted({int(length) for length in lengths})
        tokens = encoded.lengths
        if tokens.max() > buckets[-1]:
            raise DataError(
                f"a sample has {int(tokens.max())} tokens, the longest bucket {buckets[-1]}; cut "
                f"samples with max_length, or add a longer bucket"
            )
        rows = [batch_size] * len(buckets)
        if token_budget:
            budget = batch_size * buckets[-1]
            rows = [max(batch_size, budget // length // 8 * 8) for length in buckets]
        where = np.searchsorted(buckets, tokens)
        members = [np.flatnonzero(where == i) for i in range(len(buckets))]
        self._buckets = self._carry(buckets, rows, members)
        counts = [bucket.batches for bucket in self._buckets]
        if drop_remainder:
            counts = [bucket.kept // bucket.rows for bucket in self._buckets]
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    @staticmethod
    def _carry(
        lengths: Sequence[int], rows: Sequence[int], members: Sequence[np.ndarray]
    ) -> List[_Bucket]:
        """Sends what does not fill a batch one bucket up wherever that wastes fewer tokens.

        Every combination is tried (2 ** (shapes - 1), at most a few hundred); of equals the first,
        which carries least.
        """
        best: Optional[Tuple[int, List[_Bucket]]] = None
        free = min(len(lengths) - 1, 12)
        for up in itertools.product((False, True), repeat=free):
            carried, tokens = 0, 0
            buckets = []
            for i, (length, size, own) in enumerate(zip(lengths, rows, members)):
                total = len(own) + carried
                move = total % size if i < free and up[i] else 0
                bucket = _Bucket(length, size, own, carried, total - move)
                tokens += bucket.batches * size * length
                carried = move
                buckets.append(bucket)
            if best is None or tokens < best[0]:
                best = tokens, buckets
        assert best is not None
        return [bucket for bucket in best[1] if bucket.kept or bucket.carried or len(bucket.members)]

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(rows, length) of each kind of batch that occurs, shortest first."""
        counts = np.diff(self._starts)
        return [(b.rows, b.length) for b, count in zip(self._buckets, counts) if count]

    @property
    def padding_share(self) -> float:
        """Share of the tokens of an epoch that is padding, whole rows included."""
        counts = np.diff(self._starts)
        fed = sum(int(c) * b.rows * b.length for b, c in zip(self._buckets, counts))
        return 1.0 - float(self._encoded.lengths.sum()) / fed if fed else 0.0

    def describe(self) -> str:
        """One line: padding and shapes."""
        shapes = ", ".join(f"{rows}x{length}" for rows, length in self.shapes)
        return f"padding {self.padding_share:.1%}, {len(self.shapes)} shapes: {shapes}"

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches an epoch; the same in every epoch."""
        return int(self._starts[-1])

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches ``start``, ``start + 1``, ... of ``epoch``; seeking costs nothing."""
        steps = self.steps_per_epoch(epoch)
        order = permutation(steps, self._seed, epoch, _BATCH_STREAM)
        orders: Dict[int, Any] = {}
        for index in range(start, steps):
            number = int(order[index]) if self._shuffle else index
            bucket = int(np.searchsorted(self._starts, number, side="right")) - 1
            first = (number - int(self._starts[bucket])) * self._buckets[bucket].rows
            last = min(first + self._buckets[bucket].rows, self._buckets[bucket].kept)
            samples = self._samples(bucket, np.arange(first, last), epoch, orders)
            yield self._assemble(self._buckets[bucket], samples, index)

    def _samples(
        self, number: int, positions: np.ndarray, epoch: int, orders: Dict[int, Any]
    ) -> np.ndarray:
        """Sample ids at ``positions`` of a bucket: first those carried up, then its own."""
        bucket = self._buckets[number]
        out = np.empty(len(positions), np.int64)
        below = positions < bucket.carried
        if below.any():
            shifted = positions[below] + self._buckets[number - 1].kept
            out[below] = self._samples(number - 1, shifted, epoch, orders)
        own = positions[~below] - bucket.carried
        if self._shuffle:
            if number not in orders:
                orders[number] = permutation(len(bucket.members), self._seed, epoch, number)
            own = orders[number][own]
        out[~below] = bucket.members[own]
        return out

    def _assemble(self, bucket: _Bucket, samples: np.ndarray, index: int) -> Batch:
        encoded, real = self._encoded, len(samples)
        starts = encoded.offsets[samples]
        lengths = encoded.offsets[samples + 1] - starts
        columns = np.arange(bucket.length)
        inside = columns < lengths[:, None]
        token_ids = np.zeros((bucket.rows, bucket.length), np.int32)
        segment_ids = np.zeros_like(token_ids)
        token_ids[:real][inside] = encoded.token_ids[(starts[:, None] + columns)[inside]]
        first = encoded.first_lengths[samples]
        segment_ids[:real] = inside & (columns >= first[:, None])
        weights = np.zeros(bucket.rows, np.float32)
        weights[:real] = 1.0
        sample_ids = np.full(bucket.rows, -1, np.int64)
        sample_ids[:real] = samples
        labels = None
        if self._labels is not None:
            labels = np.zeros(bucket.rows, np.int32)
            labels[:real] = self._labels[samples]
        return Batch(token_ids, segment_ids, labels, weights, sample_ids, index)
