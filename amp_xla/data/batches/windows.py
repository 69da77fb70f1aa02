"""Batches of texts in windows: all windows of a text are in one batch, and on one rank.

A batch consists of groups with equally many rows; ranks and micro-batches take whole groups. A
group holds whole texts. ``buckets.pack`` decides once the pattern of a group, such as a text of 3
windows, one of 2 and one of 1. Each epoch draws texts that fit the patterns.
"""

from __future__ import annotations

from typing import Iterator, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.data.batches.buckets import Batches, in_batches, laid, pack, shared
from amp_xla.data.batches.order import generator
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.tokenizer import Encoded


def owners(batch: Mapping[str, np.ndarray]) -> Tuple[np.ndarray, np.ndarray]:
    """Return each row's text (-1 = padding), and the position in the text where the row begins."""
    texts = batch["sample_ids"]
    return batch.get("owners", texts), batch.get("begins", np.zeros(len(texts), np.int64))


def rows_of_texts(batch: Mapping[str, np.ndarray]) -> Iterator[Tuple[int, np.ndarray]]:
    """Yield, for each text of a batch, its first row, and all its rows, int64 [windows]."""
    texts = owners(batch)[0]
    for row in np.flatnonzero(batch["sample_ids"] >= 0).tolist():
        yield row, np.flatnonzero(texts == texts[row])


def means(values: np.ndarray, batch: Batch) -> np.ndarray:
    """Return, for each row, the mean of ``values`` over all rows of its text, float [R]."""
    texts = owners(batch)[0] + 1
    return (np.bincount(texts, values) / np.maximum(np.bincount(texts), 1))[texts]


class WindowBatches(Batches):
    """The batches of texts in windows; follows ``BatchSource``.

    In ``sample_ids``, ``weights`` and ``labels``, the first window of a text has the text's values;
    its other windows have the values of padding. There are three more arrays. ``owners``, int64:
    the text of each window, -1 for padding. ``begins``, int64: the position in the text where the
    window begins, 0 for padding. A batch consists of groups of rows, and all windows of a text are
    in one group. ``windows``, int32 [groups, windows of a group]: for each window, where its text's
    first window is, as an index within the group; -1 for padding.

    Args:
      rows: ``Batches`` or ``PackedBatches`` whose samples are the windows.
      most: maximum number of windows of a text.
      parts: number of micro-batches into which all ranks together divide a batch.
      shape: rows of a batch, and rows of a group. None = choose both: a batch has about as many
        rows as in ``rows``, and few rows are empty.
    """

    def __init__(
        self,
        rows: Batches,
        label_ids: Optional[np.ndarray] = None,
        seed: int = 0,
        shuffle: bool = True,
        most: int = 1,
        parts: int = 1,
        shape: Optional[Tuple[int, int]] = None,
    ) -> None:
        windows = rows.encoded.windows
        assert windows is not None, "the samples of `rows` are no windows"
        self._source, self.encoded, self.lengths = rows, rows.encoded, rows.lengths
        self.slots, self._seed, self._shuffle = rows.slots, seed, shuffle
        self._labels = None if label_ids is None else np.asarray(label_ids)
        self._counts, self._firsts = windows.counts, np.append(windows.firsts[:-1], 0)
        # Window -1 has the owner -1 and begins at 0.
        self._owners = np.append(np.repeat(np.arange(len(self._counts)), self._counts), -1)
        self._begins = np.append(windows.begins, 0)
        counts = [np.bincount(sizes, minlength=1).tolist() for _, sizes in self._units(0)]

        def packed(group: int) -> List[np.ndarray]:
            return [pack(each, group, group) for each in counts]

        if shape is None:
            size = max(rows.rows // parts, most)
            each = range(most, min(size, 4 * most) + 1)
            sizes = [n for n in each if 4 * (size % n) <= size]
            group = min(sizes, key=lambda n: n * sum(map(len, packed(n))))
            shape = parts * (size // group * group), group
        self.rows, self.group = shape
        self._packed = packed(self.group)
        self._batch_lengths = [length for length, _ in self._plan(0)]

    def like(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> WindowBatches:
        """Return unshuffled batches of other texts, in the same shapes."""
        rows, shape = self._source.like(encoded), (self.rows, self.group)
        return WindowBatches(rows, label_ids, shuffle=False, shape=shape)

    def describe(self) -> str:
        """Return a line about padding, shapes and windows."""
        several, most = int((self._counts > 1).sum()), self._counts.max()
        return f"{super().describe()}; {several:,} texts in windows, at most {most} each"

    def _units(self, epoch: int) -> List[Tuple[np.ndarray, np.ndarray]]:
        """Return, for each length, two arrays about its units, in the order of an epoch.

        A unit is all rows of a long text, or one row of short texts. The first array has the
        windows in each unit's first row, int64 [units, slots], -1 = no window. The second has each
        unit's number of rows, int64 [units].
        """
        plan = self._source._plan(epoch)
        rows = np.concatenate([ids.reshape(len(ids), self.slots) for _, ids in plan])
        leads = rows[(rows[:, 0] >= 0) & (self._begins[rows[:, 0]] == 0)]
        sizes = self._counts[self._owners[leads[:, 0]]]
        bucket = np.searchsorted(self.lengths, self.encoded.lengths[leads[:, 0]])
        numbers = range(len(self.lengths))
        return [(leads[bucket == number], sizes[bucket == number]) for number in numbers]

    def _plan(self, epoch: int) -> List[Tuple[int, np.ndarray]]:
        """Return (tokens per row, windows) per batch; windows: int64 [rows] or [rows, slots]."""
        source, buckets = generator(self._seed, epoch), []
        for (leads, sizes), packed in zip(self._units(epoch), self._packed):
            groups = shared(packed, np.arange(len(leads)), sizes)
            units, numbers, real = laid(groups, np.append(sizes, 0), self.group)
            windows = np.append(leads, np.full((1, self.slots), -1), 0)[units]
            windows[..., 0] += numbers  # above 0 only in a long text, which is alone in its rows
            windows[real < 0] = -1
            buckets.append(windows[source.permutation(len(groups))] if self._shuffle else windows)
        plan = in_batches(buckets, self.lengths, self.rows // self.group)
        shape = (-1, self.slots) if self.slots > 1 else (-1,)
        flat = [(length, windows.reshape(shape)) for length, windows in plan]
        return [flat[i] for i in source.permutation(len(flat))] if self._shuffle else flat

    def _gather(self, sample_ids: np.ndarray, length: int) -> Batch:
        """Return the arrays of a batch; here ``sample_ids`` are numbers of windows, not texts."""
        windows, owners = sample_ids, self._owners[sample_ids]
        number = np.where(windows < 0, 0, windows - self._firsts[owners])
        places = np.arange(windows.size).reshape(-1, self.group * self.slots)
        places %= places.shape[1]
        places -= number.reshape(places.shape) * self.slots
        places[windows.reshape(places.shape) < 0] = -1
        texts = np.where(number == 0, owners, -1)
        return {
            **self._source._gather(windows, length),
            **self._of_samples(texts), "owners": owners, "begins": self._begins[windows],
            "windows": places.astype(np.int32),
        }  # fmt: skip
