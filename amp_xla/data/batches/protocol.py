"""What a training loop asks of batches, and what all kinds of them have in common."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Protocol

from amp_xla.data.text.tokenizer import Encoded
from amp_xla.errors import DataError


class FeedBatch(Protocol):
    """One step's arrays.

    weights: float32, 1 for what counts and 0 for what fills up; sample_ids: int64 [B], -1 in rows
    that fill up.
    """

    weights: np.ndarray
    sample_ids: np.ndarray

    def feed(self) -> Dict[str, np.ndarray]:
        """Every array by its name; a step takes those that it has placeholders for."""


class BatchSource(Protocol):
    """Batches in an order that is a function of (seed, epoch)."""

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """(rows, length) of each kind of batch that occurs; XLA compiles for each."""

    @property
    def layout(self) -> Optional[Any]:
        """How several texts share a row (``layout.Layout``); None = a text a row."""

    @property
    def padding_share(self) -> float:
        """Share of an epoch's tokens that is padding."""

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches of ``epoch``."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of ``epoch`` from step ``start`` on; earlier ones are not made."""

    def part(self, number: int, of: int) -> BatchSource:
        """The same batches, of each only piece ``number`` of ``of``; see ``pieces``."""

    def axes(self, of: int) -> Dict[Any, Any]:
        """Name of an axis -> where ``of`` pieces lie on it (``pieces.Axis``)."""


class Fed:
    """Gives a dataclass of arrays its ``feed``."""

    def feed(self) -> Dict[str, np.ndarray]:
        """Every array by its name; a step takes those that it has placeholders for."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


class ByStep:
    """Gives a source whose batches can be made from any step on, ``_from``, its ``epoch``."""

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches of ``epoch``."""
        raise NotImplementedError

    def _from(self, epoch: int, start: int, steps: int) -> Iterator[Any]:
        raise NotImplementedError

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Batches ``start``, ``start + 1``, ... of ``epoch``; earlier ones are not made."""
        steps = self.steps_per_epoch(epoch)
        if not 0 <= start <= steps:
            raise ValueError(f"start={start}; epoch {epoch} has steps 0 to {steps}")
        return self._from(epoch, start, steps)


def check(encoded: Encoded, label_ids: Optional[np.ndarray], batch_size: int) -> None:
    """Raises DataError where batches cannot be made: no samples, not a label each, no rows."""
    if batch_size < 1:
        raise DataError(f"batch_size={batch_size}; it must be positive")
    if not len(encoded):
        raise DataError("no samples to make batches of")
    if label_ids is not None and len(label_ids) != len(encoded):
        raise DataError(f"{len(encoded):,} samples but {len(label_ids):,} labels")
