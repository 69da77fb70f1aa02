"""Encoded samples whose every token says where it belongs; what is read from files."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, List, Sequence, Tuple

import numpy as np

from amp_xla.data.pretraining.units import Reading, files_of, texts_of, units
from amp_xla.data.text.tokenizer import Encoded


def encoded(sizes: Sequence[int], pairs: bool = False) -> Tuple[Encoded, np.ndarray]:
    """Samples of ``sizes`` tokens, no two tokens alike and none 0; labels of two classes."""
    lengths = np.asarray(sizes, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(1, offsets[-1] + 1, dtype=np.int32)
    first = (lengths + 1) // 2 if pairs else lengths
    return Encoded(tokens, offsets, first.astype(np.int32)), (lengths % 2).astype(np.int32)


def corpus_texts(corpus: Any, **options: str) -> List[str]:
    """All documents of files, folders or globs, read as ``Reading(**options)`` says."""
    reading = Reading(**options)
    return [t for u in units(files_of(str(corpus)), reading) for t in texts_of(u, reading)[0]]


def digest(batches: Iterable[Any]) -> str:
    """SHA-256 over every array of every batch."""
    total = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(batch.items()):
            total.update(f"{name} {value.shape}".encode())
            total.update(value.tobytes())
    return total.hexdigest()
