"""Token dropout: hide random tokens in training batches, a regulariser for small data.

A text classifier on a few thousand texts learns to rely on single words. If each word is missing
now and then, it has to use the rest, too (word dropout: Iyyer et al., "Deep Unordered Composition
Rivals Syntactic Methods", ACL 2015).
"""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.tokenizer import Tokenizer

_STREAM = 1  # differs from the stream of the order


class TokenDropout:
    """``batches`` with a share of ordinary tokens replaced by [MASK], or [UNK] without [MASK].

    The choice of tokens depends on (seed, epoch, step). All other attributes are those
    of ``batches``.

    Args:
      batches: ``Batches`` or ``PackedBatches``.
      rate: share of the tokens, 0 <= rate < 1.
      tokenizer: the tokenizer of ``batches``; its special tokens are never hidden.
      seed: decides which tokens.
    """

    def __init__(self, batches: Any, rate: float, tokenizer: Tokenizer, seed: int = 0) -> None:
        self._batches, self._rate, self._seed = batches, rate, seed
        self._hidden = tokenizer.hidden_id
        self._special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` from ``start`` on."""
        for step, batch in enumerate(self._batches.epoch(epoch, start), start):
            yield self._hide(batch, epoch, step) if self._rate else batch

    def _hide(self, batch: Batch, epoch: int, step: int) -> Batch:
        token_ids = batch["token_ids"]
        source = generator(self._seed, epoch, step, _STREAM)
        hidden = source.random_sample(token_ids.shape) < self._rate
        hidden &= ~np.isin(token_ids, self._special)
        return {**batch, "token_ids": np.where(hidden, self._hidden, token_ids).astype(np.int32)}
