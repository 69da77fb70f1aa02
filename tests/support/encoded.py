"""Encoded samples with distinct tokens, samples as lists, and a hash of batches."""

import hashlib

import numpy as np

from amp_xla.data.text.tokenizer import Encoded


def ids_of(encoded, i):
    """Return (token ids, segment ids) of row i, as bert4keras' ``encode`` does."""
    ids = encoded.token_ids[encoded.offsets[i] : encoded.offsets[i + 1]].tolist()
    first = int(encoded.first_lengths[i])
    return ids, [0] * first + [1] * (len(ids) - first)


def encoded(sizes, pairs=False):
    """Return samples of ``sizes`` tokens, all distinct and none 0, and labels of two classes."""
    lengths = np.asarray(sizes, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(1, offsets[-1] + 1, dtype=np.int32)
    first = (lengths + 1) // 2 if pairs else lengths
    return Encoded(tokens, offsets, first.astype(np.int32)), (lengths % 2).astype(np.int32)


def digest(batches):
    """Return the SHA-256 of all arrays of all batches."""
    total = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(batch.items()):
            total.update(f"{name} {value.shape}".encode())
            total.update(value.tobytes())
    return total.hexdigest()
