"""Rows of batches shared among ranks.

The order of samples is a function of (seed, epoch), not of ranks. Each batch is cut into ``of``
pieces of equally many rows; a rank takes some of them.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import Batch, BatchSource

WEIGHTS, NUMBER = "piece_weights", "piece"  # names of what a piece is fed beside its arrays


class Axis(NamedTuple):
    """One axis of a batch's tensors: how long it is in the whole batch, and where a piece lies.

    length: of the whole; places: int32 [of, n], for each piece the positions of its n elements.
    Positions of elements that only fill up are any.
    """

    length: int
    places: np.ndarray


def axis(length: int, of: int) -> Axis:
    """``length`` elements in ``of`` runs of equally many; the last ones are filled up."""
    each = -(-length // of)
    places = np.minimum(np.arange(of * each), max(length - 1, 0)).reshape(of, each)
    return Axis(length, places.astype(np.int32))


class Pieces:
    """Of each batch of ``whole`` the pieces ``numbers`` of ``of``; ``BatchSource``'s protocol.

    Attributes:
      whole: the batches.
      rows: where the pieces lie in a batch; dropout's masks follow it.
    """

    def __init__(self, whole: Any, numbers: Sequence[int], of: int) -> None:
        self.whole, self._numbers, self._of = whole, list(numbers), of
        self.rows = axis(whole.shapes[0][0], of)
        self.several = len(self._numbers) > 1

    @property
    def first(self) -> int:
        """Number of the first piece."""
        return self._numbers[0]

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(rows, length) of the kinds of pieces."""
        return [(-(-rows // self._of), length) for rows, length in self.whole.shapes]

    @property
    def padding_share(self) -> float:
        """As that of the whole; rows that fill up pieces not counted."""
        return float(self.whole.padding_share)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches of ``epoch``."""
        return int(self.whole.steps_per_epoch(epoch))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[List[Batch]]:
        """This process' pieces of the batches of ``epoch`` from step ``start`` on."""
        for batch in self.whole.epoch(epoch, start):
            pieces = [self._piece(batch, number) for number in self._numbers]
            together = sum(float(piece["weights"].sum()) for piece in pieces)
            for number, piece in zip(self._numbers, pieces):
                shares = [piece["weights"].sum(), together]
                piece[WEIGHTS] = np.array(shares, np.float32)
                piece[NUMBER] = np.array(number, np.int32)
            yield pieces

    def _piece(self, batch: Batch, number: int) -> Dict[str, np.ndarray]:
        rows = self.rows.places[number]
        piece = {name: array[rows] for name, array in batch.items()}
        padding = number * len(rows) + np.arange(len(rows)) >= self.rows.length
        piece["weights"][padding] = 0.0
        piece["sample_ids"][padding] = -1
        return piece


def whole(batches: BatchSource) -> BatchSource:
    """The batches themselves, of all ranks together."""
    found: BatchSource = getattr(batches, "whole", batches)
    return found


def each(batch: Any) -> Sequence[Batch]:
    """What a step is fed one after the other for a batch: itself, or this process' pieces of it."""
    return batch if isinstance(batch, list) else [batch]
