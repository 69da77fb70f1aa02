"""Batches of few shapes, in an order that is a function of (seed, epoch) and nothing else.

XLA compiles a program for each input shape, and a GPU pays for padding as for text. So samples
go into a few length buckets, the lengths chosen to waste least; every batch is full, the last one
of a bucket filled up with rows of weight 0. Nothing is dropped: each sample is seen once an epoch.

Which shapes an epoch has, and how many batches of each, follows from the data and the settings
alone; what stands where is drawn by counter. So any batch of any epoch can be made on its own,
and a resumed run starts at step k without making steps 0 to k - 1.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.lengths import choose_lengths, plan_leftovers
from amp_xla.data.batches.order import Permutation, permutation
from amp_xla.data.batches.pieces import Axis, axis, rows_of
from amp_xla.data.batches.protocol import ByStep, Fed, check
from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError

__all__ = ["Batch", "Batches", "choose_lengths"]

ROWS_MULTIPLE = 8  # of a token-budget batch: tensor cores want every dimension in eights
BATCH_STREAM = 1 << 20  # the order of batches; bucket k uses stream k


@dataclasses.dataclass(frozen=True)
class Batch(Fed):
    """One step's arrays: B rows of L tokens.

    token_ids, segment_ids: int32 [B, L], 0 behind a sample's end; labels: int32 [B], 0 in rows
    that fill up, or None; weights: float32 [B], 1 for a sample and 0 for a row that fills up;
    sample_ids: int64 [B], row of the corpus, -1 for a row that fills up; index: the step within
    the epoch.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    labels: Optional[np.ndarray]
    weights: np.ndarray
    sample_ids: np.ndarray
    index: int


@dataclasses.dataclass(frozen=True)
class _Bucket:
    """Samples of one shape: its own and those adopted from below, less those passed on up."""

    length: int
    rows: int
    own: np.ndarray  # int64 sample ids, ascending
    adopted: int
    passed: int
    batches: int

    @property
    def total(self) -> int:
        return len(self.own) + self.adopted


class Batches(ByStep):
    """The batches of a corpus.

    Samples of a bucket that fill no batch join the next longer bucket where that costs fewer
    tokens than rows to fill up would.

    Args:
      encoded: the samples' tokens.
      label_ids: int [samples]; None = no labels.
      lengths: bucket lengths in tokens; a sample goes to the shortest that holds it.
      batch_size: rows of a batch; with ``token_budget`` rows of a batch of the longest bucket.
      seed: decides the order.
      shuffle: False keeps the order of the corpus within each bucket, shortest bucket first.
      token_budget: batches of shorter buckets get more rows, in multiples of 8, so that each has
        about as many tokens as one of the longest bucket.
      drop_remainder: leaves out what does not fill a batch; each epoch leaves out other samples.

    Raises:
      DataError: empty corpus, a sample longer than every bucket, a size that is not positive,
        nothing left after ``drop_remainder``.
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
        check(encoded, label_ids, batch_size)
        buckets = sorted({int(length) for length in lengths})
        sizes = encoded.lengths
        longest = int(sizes.max())
        if not buckets or buckets[0] < 1 or longest > buckets[-1]:
            raise DataError(
                f"bucket lengths {buckets}, and a sample has {longest} tokens; cut samples with "
                "max_length, or choose the lengths for every corpus that is to use them"
            )
        rows = [batch_size] * len(buckets)
        if token_budget:
            budget = batch_size * buckets[-1]
            rows = [
                max(batch_size, budget // length // ROWS_MULTIPLE * ROWS_MULTIPLE)
                for length in buckets
            ]
        self._like: Dict[str, Any] = dict(
            lengths=buckets, batch_size=batch_size, shuffle=False, token_budget=token_budget
        )
        self._seed, self._shuffle, self._drop = int(seed), shuffle, drop_remainder
        self._labels = None if label_ids is None else np.asarray(label_ids, np.int32)
        self._buckets = _fill(buckets, rows, sizes, drop_remainder)
        self._first_batch = np.cumsum([0] + [bucket.batches for bucket in self._buckets])
        if not self._first_batch[-1]:
            raise DataError(
                f"{len(encoded):,} samples fill no batch of {batch_size}; a smaller batch_size, "
                "or drop_remainder=False"
            )
        # Padding behind the last sample lets every row read a full length within the array, and
        # makes an empty sample, number -1: what a row that fills up reads.
        tail = np.zeros(buckets[-1], np.int32)
        self._tokens = np.concatenate([encoded.token_ids, tail]).astype(np.int32, copy=False)
        self._begins = encoded.offsets.astype(np.int64)
        self._sizes = np.append(sizes, 0)
        self._first_sizes = np.append(encoded.first_lengths, 0)
        self._two_segments = bool((self._first_sizes != self._sizes).any())

    layout = None
    _piece = (0, 1)

    def part(self, number: int, of: int) -> Batches:
        """The same batches, of each only piece ``number`` of ``of``."""
        found = copy.copy(self)
        found._piece = (number, of)
        return found

    def axes(self, of: int) -> Dict[str, Axis]:
        """``rows``.

        Raises:
          DataError: batches have different numbers of rows.
        """
        rows = {bucket.rows for bucket in self._buckets}
        if len(rows) > 1:
            raise DataError("batches by token_budget have different rows; ranks cannot share them")
        return {"rows": axis(rows.pop(), of)}

    def like(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> Batches:
        """Other samples, such as those to evaluate on, in the same shapes, unshuffled."""
        return Batches(encoded, label_ids, **self._like)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches an epoch; the same in every epoch."""
        return int(self._first_batch[-1])

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(rows, length) of each kind of batch that occurs, shortest first."""
        of = self._piece[1]
        return [(-(-b.rows // of), b.length) for b in self._buckets if b.batches]

    @property
    def padding_share(self) -> float:
        """Share of an epoch's tokens that is padding, whole rows included.

        With ``drop_remainder``, where epochs differ a little, that of epoch 0.
        """
        fed = sum(bucket.batches * bucket.rows * bucket.length for bucket in self._buckets)
        text = int(self._sizes.sum())
        if self._drop:
            text = sum(int(self._sizes[batch.sample_ids].sum()) for batch in self.epoch(0))
        return 1.0 - text / fed

    def describe(self) -> str:
        """One line: padding and shapes."""
        shapes = ", ".join(f"{rows}x{length}" for rows, length in self.shapes)
        many = "" if len(self.shapes) == 1 else "s"
        return f"padding {self.padding_share:.1%}, {len(self.shapes)} shape{many}: {shapes}"

    def _from(self, epoch: int, start: int, steps: int) -> Iterator[Batch]:
        plan = np.arange(start, steps)
        orders: List[Optional[Permutation]] = [None] * len(self._buckets)
        if self._shuffle:
            plan = permutation(steps, self._seed, epoch, BATCH_STREAM)[start:]
            orders = [
                permutation(bucket.total, self._seed, epoch, k)
                for k, bucket in enumerate(self._buckets)
            ]
        kinds = np.searchsorted(self._first_batch, plan, side="right") - 1
        for index, number, k in zip(range(start, steps), plan.tolist(), kinds.tolist()):
            bucket = self._buckets[k]
            first = (number - int(self._first_batch[k])) * bucket.rows
            last = min(first + bucket.rows, bucket.total - bucket.passed)
            yield self._assemble(bucket, self._samples(k, np.arange(first, last), orders), index)

    def _samples(
        self, k: int, positions: np.ndarray, orders: Sequence[Optional[Permutation]]
    ) -> np.ndarray:
        """Sample ids at ``positions`` of bucket k's order, whose last ``passed`` go up."""
        bucket, order = self._buckets[k], orders[k]
        if order is not None:
            positions = order[positions]
        own = positions < len(bucket.own)
        if own.all():
            return bucket.own[positions]
        out = np.empty(len(positions), np.int64)
        out[own] = bucket.own[positions[own]]
        below = self._buckets[k - 1]
        passed = below.total - below.passed + positions[~own] - len(bucket.own)
        out[~own] = self._samples(k - 1, passed, orders)
        return out

    def _assemble(self, bucket: _Bucket, samples: np.ndarray, index: int) -> Batch:
        first, rows = rows_of(*self._piece, bucket.rows)
        samples = samples[first : first + rows]
        real = len(samples)
        sample_ids = np.full(rows, -1, np.int64)
        sample_ids[:real] = samples
        columns = np.arange(bucket.length)
        inside = columns < self._sizes[sample_ids, None]
        token_ids = self._tokens[self._begins[sample_ids, None] + columns]
        token_ids *= inside
        segment_ids = np.zeros_like(token_ids)
        if self._two_segments:
            segment_ids[:] = inside & (columns >= self._first_sizes[sample_ids, None])
        weights = np.zeros(rows, np.float32)
        weights[:real] = 1.0
        labels = None
        if self._labels is not None:
            labels = np.zeros(rows, np.int32)
            labels[:real] = self._labels[samples]
        return Batch(token_ids, segment_ids, labels, weights, sample_ids, index)


def _fill(
    lengths: Sequence[int], rows: Sequence[int], sizes: np.ndarray, drop_remainder: bool
) -> List[_Bucket]:
    """Deals the samples to the buckets and decides what each passes up."""
    home = np.searchsorted(lengths, sizes)
    owns = [np.flatnonzero(home == k) for k in range(len(lengths))]
    passed = plan_leftovers([len(own) for own in owns], lengths, rows, drop_remainder)
    buckets, adopted = [], 0
    for k, own in enumerate(owns):
        kept = len(own) + adopted - passed[k]
        batches = kept // rows[k] if drop_remainder else -(-kept // rows[k])
        buckets.append(_Bucket(lengths[k], rows[k], own, adopted, passed[k], batches))
        adopted = passed[k]
    return buckets
