"""What a training loop asks of batches, whoever makes them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Protocol


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
        """How several texts share a row (``packed.Layout``); None = a text a row."""

    @property
    def padding_share(self) -> float:
        """Share of an epoch's tokens that is padding."""

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Batches of ``epoch``."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of ``epoch`` from step ``start`` on; earlier ones are not made."""


class Fed:
    """Gives a dataclass of arrays its ``feed``."""

    def feed(self) -> Dict[str, np.ndarray]:
        """Every array by its name; a step takes those that it has placeholders for."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
