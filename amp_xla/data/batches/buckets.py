"""Batches in a few lengths, or of packed rows.

XLA compiles a program per input shape, and a GPU pays for padding as for text. So samples are
sorted into a few length buckets. All batches have the same number of rows. In each epoch, one
batch may be filled up with rows of weight 0.

Packed rows hold several samples: next to no padding, and one shape. ``models.packed`` keeps the
samples of a row apart. The histogram of lengths decides once which lengths share a row, by best fit
(Krell et al., arXiv:2107.02027); each epoch draws the samples that have these lengths.
"""

from __future__ import annotations

import math
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError

MULTIPLE = 8  # bucket lengths are multiples of 8, for tensor cores
GAIN = 0.001  # more slots per row must save more than this share of the rows


def filled(sample_ids: np.ndarray, rows: int) -> np.ndarray:
    """Append rows of -1, which hold no sample, to ``sample_ids`` until it has ``rows`` rows."""
    missing = np.full((rows - len(sample_ids), *sample_ids.shape[1:]), -1, np.int64)
    return np.concatenate([sample_ids, missing])


def laid(grid: np.ndarray, sizes: np.ndarray, length: int) -> Tuple[np.ndarray, ...]:
    """Lay the items of each row end to end in ``length`` places.

    Args:
      grid: numbers of each row's items, int [R, S]; -1 = no item.
      sizes: number of places of each item. One more element, 0, is the size of item -1.

    Returns:
      Three arrays, int [R, length]. They give, for each place, the item there, the index of the
      place within the item, and the item's column in ``grid``. After the last item, the column is
      -1, and the other two have no meaning.
    """
    ends, columns = sizes[grid].cumsum(1), np.arange(length)
    slots = (columns[:, None] >= ends[:, None, :]).sum(2)
    last = np.minimum(slots, grid.shape[1] - 1)
    places = columns - np.take_along_axis(ends - sizes[grid], last, 1)
    return np.take_along_axis(grid, last, 1), places, np.where(slots == last, slots, -1)


def in_batches(
    buckets: Sequence[np.ndarray], lengths: Sequence[int], rows: int
) -> List[Tuple[int, np.ndarray]]:
    """Cut buckets into batches; rows that do not fill a batch join the next longer bucket."""
    plan, rest = [], buckets[0][:0]
    for members, length in zip(buckets, lengths):
        members = np.concatenate([rest, members])
        end = len(members)
        if length != lengths[-1]:
            end -= end % rows
        rest = members[end:]
        plan += [(length, members[i : i + rows]) for i in range(0, end, rows)]
    return plan


class Batches:
    """The batches of a corpus, one sample per row; follows ``BatchSource``.

    Args:
      encoded: token ids of each sample.
      label_ids: int or float [samples], or [samples, labels] for multi-label targets; None = no
        labels.
      lengths: bucket lengths in tokens; a sample goes to the shortest bucket that holds it.
      batch_size: rows of a batch.
      seed: decides the order.
      shuffle: False keeps the order of the corpus within each bucket, shortest bucket first.
      shape: rows per step and slots per row; used only by ``PackedBatches``.
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
        shape: Optional[Tuple[int, int]] = None,
    ) -> None:
        self.encoded, self._shape = encoded, shape
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
        shape = self.rows, self.slots
        return type(self)(encoded, label_ids, self.lengths, self.rows, shuffle=False, shape=shape)

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
        """Yield the batches of ``epoch`` from step ``start`` on; see ``_gather`` for the arrays."""
        for length, sample_ids in self._plan(epoch)[start:]:
            yield self._gather(filled(sample_ids, self.rows), length)

    def _plan(self, epoch: int) -> List[Tuple[int, np.ndarray]]:
        """Return length and sample ids of each batch of an epoch, in order."""
        source = generator(self._seed, epoch)
        order = np.arange(len(self.encoded))
        if self._shuffle:
            source.shuffle(order)
        buckets = self._bucket[order]
        members = [order[buckets == number] for number in range(len(self.lengths))]
        plan = in_batches(members, self.lengths, self.rows)
        return [plan[i] for i in source.permutation(len(plan))] if self._shuffle else plan

    def _gather(self, sample_ids: np.ndarray, length: int) -> Batch:
        """Return the arrays of a batch of rows of ``length`` = L tokens.

        ``sample_ids`` are int64 [R], or [R, S] for packed rows; -1 = no sample; in a packed row, -1
        comes after all samples. Returns ``token_ids``, ``segment_ids``: int32 [R, L], or [R, 2, L]
        if the texts of a pair are encoded separately; 0 for padding. ``labels`` (int32 or float32)
        and ``weights`` (float32) have the shape of ``sample_ids``, 0 in empty places; multi-label
        targets have one more axis.
        Packed rows also have ``position_ids``, int32 [R, L], counted from 0 in each sample, and
        ``slots``, int32 [R, L]: for each token, the number of its sample in the row, from 0; -1 for
        padding.
        """
        grid, texts = sample_ids.reshape(len(sample_ids), -1), self.encoded.texts
        shape = (len(grid), *[texts] * (texts > 1), length)
        if texts > 1:
            grid = np.where(grid < 0, -1, texts * grid + np.arange(texts)).reshape(-1, 1)
        owners, positions, slots = laid(grid, self._sizes, length)
        inside = slots >= 0
        token_ids = self.encoded.token_ids[np.where(inside, self._begins[owners] + positions, 0)]
        segment_ids = inside & (positions >= self._first_sizes[owners])
        batch = {
            "token_ids": np.where(inside, token_ids, 0).astype(np.int32).reshape(shape),
            "segment_ids": segment_ids.astype(np.int32).reshape(shape),
            **self._of_samples(sample_ids),
        }
        if sample_ids.ndim == 2:
            batch["position_ids"] = np.where(inside, positions, 0).astype(np.int32)
            batch["slots"] = slots.astype(np.int32)
        return batch

    def _of_samples(self, sample_ids: np.ndarray) -> Batch:
        """Return ``sample_ids``, ``weights`` and, if there are any, ``labels``; see ``_gather``."""
        batch = {"weights": (sample_ids >= 0).astype(np.float32), "sample_ids": sample_ids}
        if self._labels is not None:
            kind = np.float32 if self._labels.dtype.kind == "f" else np.int32
            batch["labels"] = labels = self._labels[sample_ids].astype(kind)
            labels[sample_ids < 0] = 0
        return batch


def choose_lengths(
    lengths: Union[Sequence[int], np.ndarray], max_shapes: int, max_length: int
) -> List[int]:
    """Return at most ``max_shapes`` ascending bucket lengths that minimise the total padding.

    Each sample's length is rounded up to a multiple of ``MULTIPLE``. For these lengths, dynamic
    programming finds the exact minimum.

    Args:
      lengths: number of tokens of each sample, of training and dev texts.
      max_shapes: maximum number of lengths; fewer are returned if more would not save padding.
      max_length: maximum length of a sample. No bucket is longer, even if ``max_length`` is not a
        multiple of 8, because the model may have no position embeddings beyond it.
    """
    rounded = np.minimum(-(-np.asarray(lengths, np.int64) // MULTIPLE) * MULTIPLE, max_length)
    # An optimal length is always the length of a sample, rounded up.
    unique, counts = np.unique(rounded, return_counts=True)
    ends, samples = unique.tolist(), [0, *np.cumsum(counts).tolist()]
    # best[j] is for the samples of the j shortest lengths: the smallest possible number of tokens
    # in their buckets, and the lengths of these buckets. All choices hold the same text, so the
    # fewest tokens mean the least padding.
    best: List[Tuple[float, List[int]]] = [(0, []), *[(math.inf, [])] * len(ends)]
    for _ in range(min(max_shapes, len(ends))):
        best = [best[0]] + [
            min(
                (
                    (tokens + (samples[j] - samples[i]) * ends[j - 1], [*chosen, ends[j - 1]])
                    for i, (tokens, chosen) in enumerate(best[:j])
                ),
                key=lambda choice: choice[0],
            )
            for j in range(1, len(best))
        ]
    return best[-1][1]


class PackedBatches(Batches):
    """The packed batches of a corpus, in one shape; follows ``BatchSource``.

    Args:
      label_ids: as for ``Batches``.
      lengths: a sequence of one number, the tokens per row; the longest sample must fit.
      batch_size: average number of samples per step, which decides the number of rows.
      shuffle: False packs every epoch the same way.
      shape: rows per step and slots per row; None = chosen from the samples.

    Attributes:
      rows: R, rows of a step.
      slots: S, maximum samples per row, at least 2.
    """

    def _prepare(self) -> None:
        """Decide which lengths share a row."""
        counts = np.bincount(self.encoded.lengths).tolist()
        if self._shape is None:
            self._packed = _fewest_slots(counts, self.lengths[0])
            self.slots = self._packed.shape[1]
            self.rows = max(1, round(len(self._packed) * self.rows / len(self.encoded)))
        else:
            self.rows, self.slots = self._shape
            self._packed = pack(counts, self.lengths[0], self.slots)

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
        members = shared(self._packed, samples, self.encoded.lengths[samples])
        # Empty rows are spread over the epoch, too.
        steps = -(-len(members) // self.rows)
        members = filled(members, steps * self.rows)
        if self._shuffle:
            members = members[source.permutation(len(members))]
        return [(self.lengths[0], rows) for rows in np.split(members, steps)]


def shared(packed: np.ndarray, items: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Assign each of ``items`` to a slot of its size.

    ``packed``, a result of ``pack``, has the sizes of the slots; ``sizes`` has those of the items.

    Returns:
      The items of each row, int64 [rows, slots]; empty slots, at the end, are -1.
    """
    members = np.full(packed.shape, -1, np.int64)
    # Sorted by size, the slots correspond to the items one by one.
    places = np.argsort(packed.reshape(-1), kind="stable")[packed.size - len(items) :]
    members.reshape(-1)[places] = items[np.argsort(sizes, kind="stable")]
    return members


def pack(counts: Sequence[int], length: int, slots: int) -> np.ndarray:
    """Pack counts[n] samples of each length n into rows by best fit, longest samples first.

    Rows with the same lengths are handled together, so the time does not depend on the number of
    samples.

    Args:
      counts: number of samples of each length, from length 0 on.
      length: tokens per row.
      slots: maximum samples per row.

    Returns:
      The lengths of the samples in each row, longest first, [rows, slots]; 0 = no sample. The
      dtype is the smallest that holds ``length``, because that sorts fastest.
    """
    # by_room[n]: the lengths in rows with room for n more tokens -> number of these rows.
    by_room: List[Dict[Tuple[int, ...], int]] = [{} for _ in range(length + 1)]
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
    patterns = dict(item for rows_by_pattern in by_room for item in rows_by_pattern.items())
    sizes = [pattern + (0,) * (slots - len(pattern)) for pattern in patterns]
    rows_of = np.array(list(patterns.values()), np.int64)
    dtype = np.min_scalar_type(length)
    return np.repeat(np.array(sizes, dtype).reshape(-1, slots), rows_of, 0)


def _fewest_slots(counts: Sequence[int], length: int) -> np.ndarray:
    """Pack with few slots per row: more slots would save at most 0.1% of the rows."""
    free = max(2, length // int(np.flatnonzero(counts)[0]))
    most = len(pack(counts, length, free)) * (1 + GAIN)
    each = (pack(counts, length, slots) for slots in range(2, free + 1))
    return next(rows for rows in each if len(rows) <= most)
