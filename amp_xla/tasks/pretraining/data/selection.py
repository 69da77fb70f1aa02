"""Documents to leave out of a corpus: copies of earlier ones, at 8 bytes of memory per document."""

from __future__ import annotations

import functools
import hashlib
from typing import Dict, Iterable, Tuple

import numpy as np

from amp_xla.tasks.pretraining.data.pool import Pool
from amp_xla.tasks.pretraining.data.units import Reading, Unit, texts_of


def copies(
    units: Iterable[Unit], reading: Reading, pool: Pool
) -> Tuple[Dict[str, np.ndarray], int]:
    """Find documents that are copies of an earlier one, ignoring white space.

    Args:
      units: the whole corpus, in order.
      reading: format of its documents.
      pool: processes that read the documents.

    Returns:
      (unit name -> numbers of its copies among the documents of ``texts_of``, int64; number of all
      documents). Keys have 64 bits: among 10 million documents, the probability that two different
      ones have the same key is 3 in a million.
    """
    parts = dict(pool.map(functools.partial(_keys, reading=reading), units))
    ends = np.cumsum([0, *map(len, parts.values())])
    keys = np.concatenate([np.zeros(0, np.uint64), *parts.values()])
    is_copy = np.ones(len(keys), bool)
    is_copy[np.unique(keys, return_index=True)[1]] = False
    left_out = {name: np.flatnonzero(is_copy[a:b]) for name, a, b in zip(parts, ends, ends[1:])}
    return left_out, len(keys)


def _keys(unit: Unit, reading: Reading) -> Tuple[str, np.ndarray]:
    """Return the unit's name, and a key of each document, uint64."""
    texts = (" ".join(text.split()).encode() for text in texts_of(unit, reading)[0])
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return unit.name, np.frombuffer(digests, "<u8")
