"""Batches in a few lengths.

XLA compiles a program per input shape, and a GPU pays for padding as for text. So samples are
sorted into a few length buckets, whose lengths are chosen to minimise padding. All batches have
the same number of rows; the last one is filled up with rows of weight 0.
"""

from __future__ import annotations

from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError


def filled(sample_ids: np.ndarray, rows: int) -> np.ndarray:
    """Return ``sample_ids`` with empty rows, -1, appended up to ``rows``."""
    missing = np.full((rows - len(sample_ids), *sample_ids.shape[1:]), -1, np.int64)
    return np.concatenate([sample_ids, missing])


class Batches:
    """The batches of a corpus, one sample per row; follows ``BatchSource``.

    Samples of a bucket that do not fill a batch join the next longer bucket.

    Args:
      encoded: token ids of each sample.
      label_ids: int or float [samples], or [samples, labels] for multi-label targets; None = no
        labels.
      lengths: bucket lengths in tokens; a sample goes to the shortest bucket that holds it.
      batch_size: rows of a batch.
      seed: decides the order.
      shuffle: False keeps the order of the corpus within each bucket, shortest bucket first.
    """

    slots = 1  # samples per row

    def __init__(
        self,
        encoded: Encoded,
        label_ids: Optional[np.ndarray] = None,
        lengths: Sequence[int] = (96,),
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.encoded = encoded
        self._labels = None if label_ids is None else np.asarray(label_ids)
        # Sample id -1 marks an empty place in a batch. As an index, -1 reads the last element, so a
        # sample without tokens is appended.
        self._begins = encoded.offsets.astype(np.int64)
        self._sizes = np.append(np.diff(encoded.offsets), 0)
        self._first_sizes = np.append(encoded.first_lengths, 0)
        self.rows, self._seed, self._shuffle = batch_size, seed, shuffle
        self.lengths = sorted({int(length) for length in lengths})
        longest = int(encoded.lengths.max())
        if not self.lengths or longest > self.lengths[-1]:
            raise DataError(
                f"rows of {self.lengths} tokens, but a sample has {longest} tokens; cut samples "
                "with max_length, or choose the lengths from all samples"
            )
        self._prepare()
        # All epochs have batches of these lengths, in different orders.
        self._batch_lengths = [length for length, _ in self._plan(0)]

    def _prepare(self) -> None:
        """Compute what all epochs have in common."""
        self._bucket = np.searchsorted(self.lengths, self.encoded.lengths)

    def like(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> Batches:
        """Return unshuffled batches of other samples, such as dev texts, in the same shapes."""
        return type(self)(encoded, label_ids, self.lengths, self.rows, shuffle=False)

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(rows, length) of each kind of batch, shortest first."""
        return [(self.rows, length) for length in sorted(set(self._batch_lengths))]

    @property
    def padding_share(self) -> float:
        """Share of padding tokens in an epoch, including rows of weight 0."""
        rows = self.rows * self.encoded.texts
        return 1.0 - len(self.encoded.token_ids) / (rows * sum(self._batch_lengths))

    def describe(self) -> str:
        """Return one line about padding and shapes."""
        shapes = ", ".join(f"{rows}x{length}" for rows, length in self.shapes)
        plural = "" if len(self.shapes) == 1 else "s"
        return f"padding {self.padding_share:.1%}, {len(self.shapes)} shape{plural}: {shapes}"

    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch."""
        return len(self._batch_lengths)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on; ``_gather`` describes the arrays."""
        for length, sample_ids in self._plan(epoch)[start:]:
            yield self._gather(filled(sample_ids, self.rows), length)

    def _plan(self, epoch: int) -> List[Tuple[int, np.ndarray]]:
        """Return length and sample ids of each batch of an epoch, in order."""
        source = generator(self._seed, epoch)
        order = np.arange(len(self.encoded))
        if self._shuffle:
            source.shuffle(order)
        buckets = self._bucket[order]
        plan, rest = [], order[:0]
        for number, length in enumerate(self.lengths):
            members = np.concatenate([rest, order[buckets == number]])
            end = len(members)
            if length != self.lengths[-1]:
                end -= end % self.rows
            rest = members[end:]
            plan += [(length, members[i : i + self.rows]) for i in range(0, end, self.rows)]
        return [plan[i] for i in source.permutation(len(plan))] if self._shuffle else plan

    def _gather(self, sample_ids: np.ndarray, length: int) -> Batch:
        """Return the arrays of a batch.

        Args:
          sample_ids: int64 [R]; or [R, S] for up to S samples per row, one after the other. -1 is
            an empty place; in a row, empty places come last.
          length: L, tokens per row.

        Returns:
          ``token_ids``, ``segment_ids``: int32 [R, L], or [R, 2, L] if the texts of a pair are
          encoded separately; 0 for padding. ``labels`` (int32 or float32) and ``weights``
          (float32) have the shape of ``sample_ids`` and are 0 in empty places; multi-label targets
          have one more axis. If ``sample_ids`` is [R, S], also ``position_ids``: int32 [R, L],
          counted from 0 in each sample; and ``slots``: int32 [R, L], for each
          token the number of its sample in the row, -1 for padding.
        """
        grid, texts = sample_ids.reshape(len(sample_ids), -1), self.encoded.texts
        shape = (len(grid), *[texts] * (texts > 1), length)
        if texts > 1:
            grid = np.where(grid < 0, -1, texts * grid + np.arange(texts)).reshape(-1, 1)
        sizes = self._sizes[grid]
        ends = sizes.cumsum(1)
        columns = np.arange(length)
        slots = (columns[:, None] >= ends[:, None, :]).sum(2)
        inside = slots < grid.shape[1]
        slots = np.minimum(slots, grid.shape[1] - 1)
        owners = np.take_along_axis(grid, slots, 1)
        positions = columns - np.take_along_axis(ends - sizes, slots, 1)
        token_ids = self.encoded.token_ids[np.where(inside, self._begins[owners] + positions, 0)]
        segment_ids = inside & (positions >= self._first_sizes[owners])
        batch = {
            "token_ids": np.where(inside, token_ids, 0).astype(np.int32).reshape(shape),
            "segment_ids": segment_ids.astype(np.int32).reshape(shape),
            "weights": (sample_ids >= 0).astype(np.float32),
            "sample_ids": sample_ids,
        }
        if self._labels is not None:
            kind = np.float32 if self._labels.dtype.kind == "f" else np.int32
            batch["labels"] = labels = self._labels[sample_ids].astype(kind)
            labels[sample_ids < 0] = 0
        if sample_ids.ndim == 2:
            batch["position_ids"] = np.where(inside, positions, 0).astype(np.int32)
            batch["slots"] = np.where(inside, slots, -1).astype(np.int32)
        return batch
