"""Encoded samples as lists, to compare them with bert4keras'."""

from __future__ import annotations

from typing import List, Tuple

from amp_xla.data.text.tokenizer import Encoded


def ids_of(encoded: Encoded, i: int) -> Tuple[List[int], List[int]]:
    """Return (token ids, segment ids) of row i, as bert4keras' ``encode`` does."""
    ids = encoded.token_ids[encoded.offsets[i] : encoded.offsets[i + 1]].tolist()
    first = int(encoded.first_lengths[i])
    return ids, [0] * first + [1] * (len(ids) - first)
