"""Documents end to end in sequences of one length: no padding but in the last one."""

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
    """``[CLS] ... [SEP]`` rows; between two documents of a row stands a [SEP].

    A document that does not fit goes on in the next row, as in RoBERTa's FULL-SENTENCES
    (arXiv 1907.11692, section 4.2), so only the last row has padding.

    Args:
      token_ids: int [tokens], all documents end to end, without special tokens.
      starts: bool [tokens], True where a word begins.
      counts: int [documents], tokens of each; empty documents leave no trace.
      length: L, tokens a row.
      cls_id, sep_id, pad_id: special tokens.

    Returns:
      (int32 [rows, L], bool [rows, L] word starts; special tokens count as words).
    """
    counts = np.asarray(counts, np.int64)
    counts = counts[counts > 0]
    if not counts.size:
        return np.zeros((0, length), np.int32), np.zeros((0, length), bool)
    # One stream: each document, then a [SEP].
    ends = np.cumsum(counts + 1) - 1
    stream = np.full(int(counts.sum()) + len(counts), sep_id, np.int32)
    words = np.ones(len(stream), bool)
    inside = np.ones(len(stream), bool)
    inside[ends] = False
    stream[inside], words[inside] = token_ids, starts
    body = length - 2
    size = len(stream) - 1  # the last [SEP] is the row's own
    rows = -(-size // body)
    full = (rows - 1) * body
    last = size - full
    out = np.full((rows, length), pad_id, np.int32)
    begins = np.ones((rows, length), bool)
    out[:, 0] = cls_id
    out[:-1, -1] = sep_id
    out[:-1, 1:-1] = stream[:full].reshape(rows - 1, body)
    begins[:-1, 1:-1] = words[:full].reshape(rows - 1, body)
    out[-1, 1 : 1 + last] = stream[full:size]
    begins[-1, 1 : 1 + last] = words[full:size]
    out[-1, 1 + last] = sep_id
    begins[:, 1] = True  # half a word at a row's begin is all the model sees of it
    return out, begins


def joined(token_ids: np.ndarray, starts: np.ndarray, each: int) -> Tuple[np.ndarray, np.ndarray]:
    """Rows of ``to_sequences`` end to end, ``each`` of them in one, as one ``[CLS] ... [SEP]``.

    Args:
      token_ids: int32 [rows, L]; only the last of those that were made together has padding.
      starts: bool [rows, L].
      each: rows in one; the last may have fewer.

    Returns:
      (int32 [ceil(rows / each), each x L], bool of that shape), padded at the end: the [CLS] and
      [SEP] between rows are gone, but for a [SEP] before padding, which ends a document.
    """
    rows, length = token_ids.shape
    made = -(-rows // each)
    out = np.zeros((made, each * length), np.int32)
    begins = np.ones((made, each * length), bool)
    kept = token_ids != 0
    kept[:, 0] = kept[:, -1] = False
    kept[::each, 0] = True  # the joined row's own [CLS]
    lasts = np.minimum(np.arange(1, made + 1) * each, rows) - 1
    kept[lasts, -1] |= token_ids[lasts, -1] != 0
    for row in range(made):
        part = slice(row * each, min((row + 1) * each, rows))
        count = int(kept[part].sum())
        out[row, :count] = token_ids[part][kept[part]]
        begins[row, :count] = starts[part][kept[part]]
    return out, begins
