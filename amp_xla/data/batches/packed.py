"""Several samples in one row: next to no padding, with one shape.

Length buckets have a floor: on reviews of 5 to 256 tokens the best six lengths still pad 15%,
and twenty are needed for 5%. Rows that hold several samples end to end need one shape and pad
less than 1%. The model must then keep the samples of a row apart: position ids start again at 0,
attention stays inside a sample, pooling is per sample (`amp_xla.models.packed`).

Which rows a step has, and which lengths share a row, is decided once, by `layout`. Which sample of
that length stands there, and when the row's turn comes, is drawn by counter from (seed, epoch).
Rows are dealt so that every step has about as many samples and the same mixture of lengths. A step
is made without those before it.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from amp_xla.data.batches.layout import Layout, choose_layout, pack, table
from amp_xla.data.batches.order import permutation
from amp_xla.data.batches.pieces import Axis, axis, rows_of
from amp_xla.data.batches.protocol import ByStep, Fed, check
from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError

SAMPLE_ORDER, ROW_ORDER = 0, 1  # streams of the order; row r of a step uses ROW_ORDER + r


@dataclasses.dataclass(frozen=True)
class PackedBatch(Fed):
    """One step: R rows end to end in a line of T tokens; a sample is one of R * S slots.

    token_ids, segment_ids, position_ids: int32 [1, T]; positions count from 0 in every sample.
    slots: int32 [1, T], which of its row's S samples a token belongs to, -1 for padding.
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


class PackedBatches(ByStep):
    """The packed batches of a corpus: one shape, and ``Batches``' protocol.

    Args:
      encoded: the samples' tokens.
      label_ids: int [samples]; None = no labels.
      length: tokens of the longest rows, at least the longest sample's.
      batch_size: samples of a step on the average; the rows are chosen for it. How many samples
        a step has varies a little.
      seed: decides the order.
      shuffle: False packs every epoch alike.
      layout: the rows of a step, and the most samples of each; None = chosen from the samples.

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
        layout: Optional[Layout] = None,
    ) -> None:
        check(encoded, label_ids, batch_size)
        sizes = encoded.lengths
        longest = int(sizes.max())
        length = layout.blocks[0][1] if layout else length
        if longest > length:
            raise DataError(
                f"rows of {length} tokens, and a sample has {longest}; cut samples with max_length"
            )
        self._seed, self._shuffle = int(seed), shuffle
        self._encoded, self._sizes = encoded, sizes
        self._labels = None if label_ids is None else np.asarray(label_ids, np.int32)
        self._two_segments = bool((encoded.first_lengths != sizes).any())

        counts = np.bincount(sizes, minlength=length + 1).tolist()
        self.layout = layout or choose_layout(counts, length, batch_size)
        self._steps, plan = pack(counts, self.layout)
        self._row_sizes = table(plan, self.layout.slots)
        self._whole = self.layout
        self._taken = np.arange(self.layout.rows)  # rows of a step; -1 for one that fills up
        # The plan's slots and the samples, both sorted by length, stand opposite each other.
        flat = self._row_sizes.reshape(-1)
        self._slots_by_length = np.argsort(flat, kind="stable")[int((flat == 0).sum()) :]

    def like(self, encoded: Encoded, label_ids: Optional[np.ndarray] = None) -> PackedBatches:
        """Other samples, such as those to evaluate on, in batches of the same shape, unshuffled."""
        return PackedBatches(encoded, label_ids, shuffle=False, layout=self.layout)

    def part(self, number: int, of: int) -> PackedBatches:
        """The same batches, of each only piece ``number`` of ``of``: rows of every block."""
        found = copy.copy(self)
        found.layout = self._whole.piece(of)
        taken, begin = [], 0
        for rows, _ in self._whole.blocks:
            first, each = rows_of(number, of, rows)
            own = np.arange(first, first + each)
            taken.append(np.where(own < rows, begin + own, -1))
            begin += rows
        found._taken = np.concatenate(taken)
        return found

    def axes(self, of: int) -> Dict[Any, Axis]:
        """``("rows", length)`` of each block, ``tokens`` of the line, ``slots``."""
        layout = self._whole
        found: Dict[Any, Axis] = {}
        tokens: List[np.ndarray] = []
        slots: List[np.ndarray] = []
        token = row = 0
        for rows, length in layout.blocks:
            block = axis(rows, of)
            found["rows", length] = block
            places = block.places[:, :, None]
            tokens.append((token + places * length + np.arange(length)).reshape(of, -1))
            slots.append(((row + places) * layout.slots + np.arange(layout.slots)).reshape(of, -1))
            token, row = token + rows * length, row + rows
        for name, size, parts in (("tokens", token, tokens), ("slots", row * layout.slots, slots)):
            found[name] = Axis(size, np.concatenate(parts, 1).astype(np.int32))
        return found

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches an epoch; the same in every epoch."""
        return self._steps

    @property
    def shapes(self) -> List[Tuple[int, int]]:
        """(1, T): one."""
        return [(1, self.layout.tokens)]

    @property
    def padding_share(self) -> float:
        """Share of an epoch's tokens that is padding, empty rows included."""
        return 1.0 - int(self._sizes.sum()) / (self._steps * self._whole.tokens)

    def describe(self) -> str:
        """One line: padding, shape, samples a step."""
        mean = len(self._sizes) / self._steps
        return (
            f"padding {self.padding_share:.1%}, 1 shape: {self.layout}, packed, about "
            f"{mean:.0f} samples a step"
        )

    def _from(self, epoch: int, start: int, steps: int) -> Iterator[PackedBatch]:
        plan = self._epoch_rows(epoch)
        members = self._epoch_members(epoch)
        empty = self._taken[:, None] < 0
        for step in range(start, steps):
            rows = plan[self._taken, step]
            sizes = np.where(empty, 0, self._row_sizes[rows])
            yield self._assemble(sizes, np.where(empty, -1, members[rows]), step)

    def _epoch_rows(self, epoch: int) -> np.ndarray:
        """int64 [R, steps]: rows of the plan.

        Rows of a length are sorted by number of samples and cut into as many strata as a step
        has of them: each step takes one row of each.
        """
        # The plan's rows are sorted by length; each row of a step has so many of them.
        lengths = np.repeat(self._whole.row_lengths, self._steps)
        order = np.lexsort((-(self._row_sizes > 0).sum(1), -lengths))
        strata = order.reshape(self._whole.rows, self._steps)
        if not self._shuffle:
            return strata
        orders = [
            permutation(self._steps, self._seed, epoch, ROW_ORDER + r)[:]
            for r in range(self._whole.rows)
        ]
        return np.stack([stratum[order] for stratum, order in zip(strata, orders)])

    def _epoch_members(self, epoch: int) -> np.ndarray:
        """int64 [rows of the plan, slots]: sample ids, -1 in empty slots."""
        order = np.arange(len(self._sizes))
        if self._shuffle:
            order = permutation(len(self._sizes), self._seed, epoch, SAMPLE_ORDER).at_once()
        members = np.full(self._row_sizes.size, -1, np.int64)
        members[self._slots_by_length] = order[np.argsort(self._sizes[order], kind="stable")]
        return members.reshape(self._row_sizes.shape)

    def _assemble(self, sizes: np.ndarray, sample_ids: np.ndarray, step: int) -> PackedBatch:
        real = sample_ids >= 0
        samples, lengths = sample_ids[real], sizes[real]
        row, slot = np.nonzero(real)
        lengths_of_rows = self.layout.row_lengths
        row_begins = np.cumsum(lengths_of_rows) - lengths_of_rows
        begin = row_begins[row] + (np.cumsum(sizes, axis=1) - sizes)[real]
        # Token k of the step: which sample, which position in it.
        owner = np.repeat(np.arange(len(samples)), lengths)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        target = begin[owner] + position

        def line(values: np.ndarray, empty: int = 0) -> np.ndarray:
            out = np.full(self.layout.tokens, empty, np.int32)
            out[target] = values
            return out[None]

        tokens = self._encoded.token_ids[self._encoded.offsets[samples][owner] + position]
        if self._two_segments:
            segments = line(position >= self._encoded.first_lengths[samples][owner])
        else:
            segments = np.zeros((1, self.layout.tokens), np.int32)
        labels = None
        if self._labels is not None:
            labels = np.zeros(sample_ids.size, np.int32)
            labels[real.reshape(-1)] = self._labels[samples]
        return PackedBatch(
            token_ids=line(tokens),
            segment_ids=segments,
            position_ids=line(position),
            slots=line(slot[owner], -1),
            labels=labels,
            weights=real.reshape(-1).astype(np.float32),
            sample_ids=sample_ids.reshape(-1),
            index=step,
        )
