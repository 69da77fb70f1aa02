"""Spans of tokens, as BIO tags or as a matrix [start, end]; decoding of a model's scores."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence

import numpy as np

from amp_xla.errors import SettingsError


class Span(NamedTuple):
    """Tokens ``first`` to ``last``, inclusive, with the number of a label."""

    first: int
    last: int
    label: int


def is_flat(head: str) -> bool:
    """Return whether a head scores tags; other heads score pairs of first and last token."""
    return head in ("softmax", "crf")


def check(head: str, label_smoothing: float, r_drop: float) -> None:
    """Raise SettingsError if label smoothing or R-Drop is on, and the head does not allow it."""
    if label_smoothing and head != "softmax":
        raise SettingsError(
            f"--label-smoothing {label_smoothing:g} excludes --head {head}; allowed: softmax"
        )
    if r_drop and not is_flat(head):
        raise SettingsError(f"--r-drop excludes --head {head}; allowed: softmax, crf")


def tags_of(spans: Sequence[Span], length: int) -> np.ndarray:
    """Return BIO tags, int32 [length]: O is 0, B is 1 + 2 * label, I is 2 + 2 * label.

    A span that overlaps an earlier span is left out.
    """
    tags = np.zeros(length, np.int32)
    for first, last, label in spans:
        if not tags[first : last + 1].any():
            tags[first : last + 1] = 2 + 2 * label
            tags[first] = 1 + 2 * label
    return tags


def inside(spans: Sequence[Span], begin: int, size: int, clip: bool) -> List[Span]:
    """Return the spans inside a window of ``size`` tokens, with positions relative to the window.

    Token 1 of the window is token ``begin`` + 1 of the text. If ``clip``, spans that are partly
    outside are cut to the window; else they are left out.
    """
    moved = ((first - begin, last - begin, label) for first, last, label in spans)
    if clip:
        moved = ((max(first, 1), min(last, size), label) for first, last, label in moved)
    return [Span(*span) for span in moved if 1 <= span[0] <= span[1] <= size]


def joined(
    windows: Sequence[Sequence[Span]], begins: Sequence[int], size: int, flat: bool
) -> List[Span]:
    """Return the spans of a text from those of its windows.

    Each token belongs to the window in which it is furthest from an edge. If ``flat``, a token's
    tag is that of this window; else a span is taken from the window of its middle token. Tokens are
    counted from 1. A window has ``size`` tokens, and starts after token ``begins[i]`` of the text.
    """
    ends = [(a + b + size + 1) // 2 for a, b in zip(begins, begins[1:])]
    ends.append(begins[-1] + size)
    if not flat:
        return [
            Span(begin + first, begin + last, label)
            for spans, begin, start, end in zip(windows, begins, [0, *ends], ends)
            for first, last, label in spans
            if start <= begin + (first + last) // 2 - 1 < end
        ]
    tags = np.zeros(ends[-1] + 1, np.int32)
    for spans, begin, start, end in zip(windows, begins, [0, *ends], ends):
        tags[start + 1 : end + 1] = tags_of(spans, size + 1)[start + 1 - begin : end + 1 - begin]
    before = np.append(0, tags[:-1])
    orphans = (tags > 0) & (tags % 2 == 0) & (before != tags) & (before != tags - 1)
    return spans_of((tags - orphans).tolist())


def spans_of(tags: Sequence[int]) -> List[Span]:
    """Return the spans of valid BIO tags, in which each span starts with B."""
    spans: List[Span] = []
    for i, tag in enumerate(tags):
        if tag % 2:
            spans.append(Span(i, i, tag // 2))
        elif tag:
            spans[-1] = spans[-1]._replace(last=i)
    return spans


def decode(
    head: str, output: Mapping[str, np.ndarray], token_ids: np.ndarray
) -> List[List[Span]]:  # fmt: skip
    """Return the spans of each row of a batch; no span includes the row's first or last token.

    Args:
      output: for softmax and crf, ``scores`` float [B, L, tags] and ``transitions`` float [tags,
        tags]; for other heads, ``scores`` float [B, labels, L, L].
      token_ids: int [B, L], 0 for padding.
    """
    lengths = (token_ids != 0).sum(1)
    if is_flat(head):
        best = best_tags(output["scores"], output["transitions"], lengths)
        return [spans_of(tags[:size].tolist()) for tags, size in zip(best, lengths)]
    spans: List[List[Span]] = [[] for _ in lengths]
    for row, label, first, last in np.argwhere(output["scores"] > 0).tolist():
        if 0 < first <= last < lengths[row] - 1:
            spans[row].append(Span(first, last, label))
    return spans


def best_tags(scores: np.ndarray, transitions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the BIO tags of the best path, int [B, L], by Viterbi's algorithm.

    An I tag follows only B or I of the same label. The first and the last token have the tag O.

    Args:
      scores: scores of each tag, float [B, L, tags].
      transitions: scores of each tag followed by each tag, float [tags, tags].
      lengths: number of tokens of each text, int [B]; tags after them are arbitrary.
    """
    rows, size, count = scores.shape
    tag = np.arange(count)
    inside = (tag > 0) & (tag % 2 == 0)
    continues = (tag == tag[:, None]) | (tag == tag[:, None] + 1)
    step = np.where(inside & ~continues, -np.inf, transitions.astype(np.float64))
    scores = scores.astype(np.float64)
    scores[:, 0, 1:] = -np.inf
    scores[np.arange(rows), np.maximum(lengths, 1) - 1, 1:] = -np.inf
    best, back = scores[:, 0], np.zeros((size, rows, count), np.int64)
    for i in range(1, size):
        paths = best[:, :, None] + step
        back[i] = paths.argmax(1)
        best = np.where((i < lengths)[:, None], paths.max(1) + scores[:, i], best)
    path = np.zeros((rows, size), np.int64)
    state = best.argmax(1)
    for i in range(size - 1, -1, -1):
        path[:, i] = state
        state = np.where(i < lengths, back[i, np.arange(rows), state], state)
    return path
