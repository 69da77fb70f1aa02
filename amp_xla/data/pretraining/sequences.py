"""Documents packed end to end in rows of one length; only the last row has padding."""

from __future__ import annotations

from typing import Tuple

import numpy as np


def to_sequences(
    token_ids: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    length: int,
    cls_id: int,
    sep_id: int,
    pad_id: int = 0,
) -> Tuple[np.ndarray, np.ndarray]:
    """Return ``[CLS] ... [SEP]`` rows with a [SEP] between two documents of a row.

    A document that does not fit continues in the next row, as in RoBERTa's FULL-SENTENCES
    (arXiv 1907.11692, section 4.2).

    Args:
      token_ids: int [tokens], all documents without special tokens.
      starts: bool [tokens], True at word starts.
      counts: int [documents], tokens of each; empty documents are ignored.
      length: L, tokens per row.
      cls_id, sep_id, pad_id: special tokens.

    Returns:
      (int32 [rows, L], bool [rows, L] word starts; special tokens count as words).
    """
    counts = np.asarray(counts, np.int64)
    counts = counts[counts > 0]
    if not counts.size:
        return np.zeros((0, length), np.int32), np.zeros((0, length), bool)
    body = length - 2
    size = int((counts + 1).sum()) - 1  # a [SEP] after each document but the last
    rows = -(-size // body)
    stream = np.full(rows * body, pad_id, np.int32)
    words = np.ones(rows * body, bool)
    inside = np.ones(size, bool)
    inside[np.cumsum(counts[:-1] + 1) - 1] = False
    stream[:size] = sep_id
    stream[:size][inside], words[:size][inside] = token_ids, starts
    out = np.full((rows, length), sep_id, np.int32)
    out[:, 0] = cls_id
    out[:, 1:-1] = stream.reshape(rows, body)
    begins = np.ones((rows, length), bool)
    begins[:, 1:-1] = words.reshape(rows, body)
    begins[:, 1] = True  # the visible part of a word that began in the previous row
    last = 1 + size - (rows - 1) * body
    out[-1, last], out[-1, last + 1 :] = sep_id, pad_id
    return out, begins


def joined(token_ids: np.ndarray, starts: np.ndarray, each: int) -> Tuple[np.ndarray, np.ndarray]:
    """Join each ``each`` rows of ``to_sequences`` to one ``[CLS] ... [SEP]`` row.

    Args:
      token_ids: int32 [rows, L].
      starts: bool [rows, L].
      each: rows per joined row; the last may have fewer.

    Returns:
      (int32 [ceil(rows / each), each * L], bool of that shape), padded at the end. The [CLS] and
      [SEP] between rows are removed, except a [SEP] before padding, which ends a document.
    """
    rows, length = token_ids.shape
    joined_rows = -(-rows // each)
    out = np.zeros((joined_rows, each * length), np.int32)
    begins = np.ones((joined_rows, each * length), bool)
    copied = token_ids != 0
    copied[:, 0] = copied[:, -1] = False
    copied[::each, 0] = True
    lasts = np.minimum(np.arange(1, joined_rows + 1) * each, rows) - 1
    copied[lasts, -1] |= token_ids[lasts, -1] != 0
    for row in range(joined_rows):
        part = slice(row * each, min((row + 1) * each, rows))
        count = int(copied[part].sum())
        out[row, :count] = token_ids[part][copied[part]]
        begins[row, :count] = starts[part][copied[part]]
    return out, begins
