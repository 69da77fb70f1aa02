"""Samples with distinct tokens, the texts of a corpus, and a hash of batches."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, List, Sequence, Tuple

import numpy as np

from amp_xla.data.pretraining.units import Reading, files_of, texts_of, units
from amp_xla.data.text.tokenizer import Encoded


def encoded(sizes: Sequence[int], pairs: bool = False) -> Tuple[Encoded, np.ndarray]:
    """Return samples of ``sizes`` tokens, all distinct and none 0, and labels of two classes."""
    lengths = np.asarray(sizes, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(1, offsets[-1] + 1, dtype=np.int32)
    first = (lengths + 1) // 2 if pairs else lengths
    return Encoded(tokens, offsets, first.astype(np.int32)), (lengths % 2).astype(np.int32)


def corpus_texts(corpus: Any, **options: str) -> List[str]:
    """Return all documents of files, folders or globs, read with ``Reading(**options)``."""
    reading = Reading(**options)
    return [t for u in units(files_of(str(corpus)), reading) for t in texts_of(u, reading)[0]]


def digest(batches: Iterable[Any]) -> str:
    """Return the SHA-256 of all arrays of all batches."""
    total = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(batch.items()):
            total.update(f"{name} {value.shape}".encode())
            total.update(value.tobytes())
    return total.hexdigest()
