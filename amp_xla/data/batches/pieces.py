"""Batches cut into pieces, some of which are this process': what ranks share a batch by.

The order of samples is a function of (seed, epoch) and knows nothing of ranks. Each batch of it is
cut into ``of`` pieces of equally many rows; a rank takes some of them. So what the ranks do in a
step, together, is what one process would have done, for any number of ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import BatchSource

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


def rows_of(number: int, of: int, rows: int) -> Tuple[int, int]:
    """First row, and rows, of piece ``number`` of ``of``; the last may lie beyond the batch."""
    each = -(-rows // of)
    return number * each, each


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a batch, as a step is fed with it.

    batch: its arrays; number: which piece; together: weights of all the pieces of this process.
    """

    batch: Any
    number: int
    together: float

    @property
    def sample_ids(self) -> np.ndarray:
        """As the batch's."""
        return np.asarray(self.batch.sample_ids)

    @property
    def weights(self) -> np.ndarray:
        """As the batch's."""
        return np.asarray(self.batch.weights)

    def feed(self) -> Dict[str, np.ndarray]:
        """The batch's arrays, which piece it is, and its weight and that of all of this rank's."""
        found: Dict[str, np.ndarray] = dict(self.batch.feed())
        found[WEIGHTS] = np.array([self.batch.weights.sum(), self.together], np.float32)
        found[NUMBER] = np.array(self.number, np.int32)
        return found


class Shared(NamedTuple):
    """This process' pieces of one batch, in order."""

    pieces: List[Piece]

    @property
    def sample_ids(self) -> np.ndarray:
        """int64: of all pieces, -1 in rows that fill up."""
        return np.concatenate([piece.sample_ids.reshape(-1) for piece in self.pieces])

    def feed(self) -> Dict[str, np.ndarray]:
        """That of the first piece: all have the same shapes."""
        return self.pieces[0].feed()


class Pieces:
    """Of each batch of ``whole`` the pieces ``numbers`` of ``of``; ``BatchSource``'s protocol.

    Attributes:
      whole: the batches.
      axes: name of an axis -> where the pieces lie on it; dropout's masks follow it.
    """

    def __init__(self, whole: Any, numbers: Sequence[int], of: int) -> None:
        self.whole, self._numbers = whole, list(numbers)
        self._parts = [whole.part(number, of) for number in numbers]
        self.axes: Dict[Any, Axis] = whole.axes(of)
        self.several = len(self._numbers) > 1

    @property
    def first(self) -> int:
        """Number of the first piece."""
        return self._numbers[0]

    @property
    def layout(self) -> Optional[Any]:
        """Of a piece."""
        return self._parts[0].layout

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(rows, length) of the kinds of pieces."""
        found: Sequence[Tuple[int, int]] = self._parts[0].shapes
        return found

    @property
    def padding_share(self) -> float:
        """As that of the whole; rows that fill up pieces not counted."""
        return float(self.whole.padding_share)

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches of ``epoch``."""
        return int(self.whole.steps_per_epoch(epoch))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Shared]:
        """This process' pieces of the batches of ``epoch`` from step ``start`` on."""
        for batches in zip(*(part.epoch(epoch, start) for part in self._parts)):
            together = float(sum(batch.weights.sum() for batch in batches))
            yield Shared([Piece(b, n, together) for b, n in zip(batches, self._numbers)])


def whole(batches: BatchSource) -> BatchSource:
    """The batches themselves, of all ranks together."""
    found: BatchSource = getattr(batches, "whole", batches)
    return found


def each(batch: Any) -> Sequence[Any]:
    """What a step is fed one after the other for a batch: itself, or this process' pieces of it."""
    return batch.pieces if isinstance(batch, Shared) else [batch]
