"""Documents end to end in sequences of one length: no padding but in the last one."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import numpy as np

STRETCH = 1 << 20  # characters that are cut into tokens at once


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


def packed(
    texts: List[str], cutter: Any, length: int
) -> Iterator[Tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """``to_sequences`` of all ``texts``, a stretch of them at a time: the same rows in less memory.

    Args:
      texts: documents.
      cutter: of ``words.cutter``.
      length: L, tokens a row.

    Yields:
      (int32 [rows, L], bool [rows, L] word starts, int32 ids of the stretch's tokens).
    """
    tokenizer = cutter.tokenizer
    # The row that a stretch ends in is begun again by the next one, as if it were a document.
    open_ids: np.ndarray = np.zeros(0, np.int32)
    open_starts: np.ndarray = np.zeros(0, bool)
    begin = size = 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if size < STRETCH and end < len(texts):
            continue
        ids, starts, counts = cutter(texts[begin:end])
        begin, size = end, 0
        rows, begins = to_sequences(
            np.concatenate([open_ids, ids]), np.concatenate([open_starts, starts]),
            np.concatenate([[len(open_ids)], counts]), length, tokenizer.cls_id, tokenizer.sep_id,
            tokenizer.pad_id,
        )  # fmt: skip
        if end < len(texts) and len(rows):
            used = int((counts > 0).sum() + counts.sum()) - 1 + len(open_ids) + (len(open_ids) > 0)
            last = slice(1, 1 + used - (len(rows) - 1) * (length - 2))
            open_ids, open_starts = rows[-1, last], begins[-1, last]
            rows, begins = rows[:-1], begins[:-1]
        yield rows, begins, ids


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
