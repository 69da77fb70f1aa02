"""Training batches with tokens hidden at random, as a regulariser for small data.

A text classifier on a few thousand texts learns to lean on single words. When each of them is
missing now and then (word dropout: Iyyer et al., "Deep Unordered Composition Rivals Syntactic
Methods", ACL 2015), it has to use the rest too.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

import numpy as np

from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.packed import PackedBatches
from amp_xla.data.batches.pieces import Axis
from amp_xla.data.counter import uniform
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError

_STREAM = 40  # apart from masking's


class HiddenTokens:
    """``batches`` with a share of the ordinary tokens replaced by [MASK], or [UNK] without one.

    Which ones is a function of (seed, epoch, step, place), so a resumed run hides the same. What
    is evaluated (``like``) stays as it is.

    Args:
      batches: ``Batches`` or ``PackedBatches``.
      rate: share of the tokens, 0 <= rate < 1.
      tokenizer: what made them; its special tokens are never hidden.
      seed: decides which tokens.

    Raises:
      DataError: a rate outside [0, 1).
    """

    def __init__(
        self,
        batches: Union[Batches, PackedBatches],
        rate: float,
        tokenizer: Tokenizer,
        seed: int = 0,
    ) -> None:
        if not 0.0 <= rate < 1.0:
            raise DataError(f"token dropout is {rate}; it must be at least 0 and below 1")
        self._batches, self._rate, self._seed = batches, rate, seed
        self._hidden = tokenizer.hidden_id
        self._special = np.array([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
        self._line: Optional[Axis] = None  # where a piece's tokens lie on a line of packed rows
        self._rows: Optional[Axis] = None  # or its rows in the batch
        self.like, self.describe = batches.like, batches.describe
        self.steps_per_epoch, self.axes = batches.steps_per_epoch, batches.axes

    @property
    def layout(self) -> Optional[Any]:
        """As that of ``batches``."""
        return self._batches.layout

    def part(self, number: int, of: int) -> HiddenTokens:
        """The same batches, of each only piece ``number`` of ``of``."""
        found = copy.copy(self)
        found._batches = self._batches.part(number, of)
        axes: Dict[Any, Axis] = self.axes(of)
        mine = {name: axis._replace(places=axis.places[number]) for name, axis in axes.items()}
        found._line, found._rows = mine.get("tokens"), mine.get("rows")
        return found

    @property
    def shapes(self) -> Sequence[Tuple[int, int]]:
        """As those of ``batches``."""
        return self._batches.shapes

    @property
    def padding_share(self) -> float:
        """As that of ``batches``."""
        return self._batches.padding_share

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of ``epoch`` from step ``start`` on."""
        batches = self._batches.epoch(epoch, start)
        return (self._hide(batch, epoch) for batch in batches) if self._rate else batches

    def _hide(self, batch: Any, epoch: int) -> Any:
        ids = batch.token_ids
        if self._rows is not None:
            rows = batch.index * self._rows.length + self._rows.places
        else:
            rows = batch.index * len(ids) + np.arange(len(ids))
        length = ids.shape[1] if self._line is None else self._line.length
        drawn = uniform(self._seed, epoch, _STREAM, rows, length) < self._rate
        if self._line is not None:
            drawn = drawn[:, self._line.places]
        hidden = np.where(drawn & ~np.isin(ids, self._special), self._hidden, ids)
        return dataclasses.replace(batch, token_ids=hidden.astype(ids.dtype))
