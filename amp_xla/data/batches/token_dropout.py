"""Token dropout: hide random tokens in training batches, a regulariser for small data.

A text classifier on a few thousand texts learns to rely on single words. If each word is missing
now and then, it has to use the rest, too (word dropout: Iyyer et al., "Deep Unordered Composition
Rivals Syntactic Methods", ACL 2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amp_xla.data.batches.order import generator
from amp_xla.data.batches.protocol import Batch, MappedBatches
from amp_xla.data.text.tokenizer import Tokenizer

_STREAM = 1  # last part of the random seed, so that order and dropout draw different numbers


def token_dropout(batches: Any, rate: float, tokenizer: Tokenizer, seed: int = 0) -> Any:
    """Replace a share of the ordinary tokens by [MASK], or by [UNK] without [MASK].

    The choice of tokens depends on (seed, epoch, step).

    Args:
      batches: ``Batches`` or ``PackedBatches``.
      rate: share of the tokens, 0 <= rate < 1.
      tokenizer: the tokenizer of ``batches``; its special tokens are never hidden.
      seed: decides which tokens are hidden.
    """
    special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]

    def hide(batch: Batch, epoch: int, step: int) -> Batch:
        token_ids = batch["token_ids"]
        source = generator(seed, epoch, step, _STREAM)
        hidden = source.random_sample(token_ids.shape) < rate
        hidden &= ~np.isin(token_ids, special)
        masked = np.where(hidden, tokenizer.hidden_id, token_ids).astype(np.int32)
        return {**batch, "token_ids": masked}

    return MappedBatches(batches, hide) if rate else batches
