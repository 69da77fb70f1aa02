"""Word vectors from counts: which tokens stand near each other in a text, in a few seconds.

Tokens used alike stand among the same neighbours. Gradients find that out over many thousand
updates; a table of counts and one singular value decomposition show it before the first.
"""

from __future__ import annotations

from typing import Iterable, Tuple

import numpy as np

from amp_xla.data.pretraining.prepared import Sequences

WINDOW = 10  # neighbours counted on each side; one at distance d counts 1 / d
CONTEXTS = 4096  # at most so many of the commonest tokens count as neighbours ...
CELLS = 1 << 26  # ... and so few that the table takes 256 MiB
SMOOTHING = 0.75  # of the neighbours' frequencies: rare ones say less than they seem to
SAMPLE, BLOCK = 1 << 15, 64  # sequences that are counted; how many stand together
ITERATIONS, SPARE = 3, 16  # of the decomposition: sweeps, and columns more than asked for


def sample(sequences: Sequences) -> np.ndarray:
    """int32 [n, L]: all sequences, or blocks of them taken evenly from a large corpus."""
    n = len(sequences)
    if n <= SAMPLE:
        return sequences.read(0, n)[0]
    firsts = np.linspace(0, n - BLOCK, SAMPLE // BLOCK).astype(np.int64)
    return np.concatenate([sequences.read(int(first), BLOCK)[0] for first in firsts])


def word_vectors(
    token_ids: np.ndarray, vocab_size: int, size: int, special_ids: Iterable[int], seed: int = 0
) -> Tuple[np.ndarray, np.ndarray]:
    """Vectors whose products follow how much likelier than chance two tokens are neighbours.

    Positive pointwise mutual information, with smoothed neighbours, is cut to ``size`` dimensions
    as U sqrt(S) (Levy, Goldberg & Dagan, TACL 2015) by a randomized decomposition (Halko et al.,
    arXiv 0909.4061), and turned at random, so that no dimension matters more than another.

    Args:
      token_ids: int [n, L], sequences of documents with a special token between them.
      vocab_size: ids are below it.
      size: dimensions.
      special_ids: tokens that are no words: they get no vector and are nobody's neighbour.
      seed: of the turn.

    Returns:
      (float32 [vocab_size, size], every row of mean square 1 or zero; bool [vocab_size], which
      tokens have a vector).
    """
    special = np.zeros(vocab_size, bool)
    special[list(special_ids)] = True
    counts = _counts(token_ids, vocab_size, special)
    seen = np.flatnonzero(counts.any(1))  # of a ready-made vocabulary much may not occur
    found = _decomposed(_information(counts[seen]), size)
    vectors = np.zeros((vocab_size, size))
    vectors[seen, : found.shape[1]] = found
    turn, _ = np.linalg.qr(np.random.RandomState(seed).standard_normal((size, size)))
    vectors = vectors @ turn
    length = np.sqrt((vectors**2).mean(1, keepdims=True))
    known = length[:, 0] > 1e-6
    vectors[known] /= length[known]
    vectors[~known] = 0.0
    return vectors.astype(np.float32), known


def _counts(token_ids: np.ndarray, vocab_size: int, special: np.ndarray) -> np.ndarray:
    """float32 [vocab_size, C]: how often, weighted by nearness, C common tokens stand near one."""
    often = np.bincount(token_ids.ravel(), minlength=vocab_size)
    often[special] = 0
    most = min(CONTEXTS, max(1, CELLS // vocab_size), int(np.count_nonzero(often)))
    column = np.full(vocab_size, -1, np.int64)
    column[np.argsort(-often, kind="stable")[:most]] = np.arange(most)
    # A special token stands between documents: what is beyond it is another text.
    text = np.cumsum(special[token_ids], axis=1)
    counts = np.zeros(vocab_size * most, np.float32)
    for distance in range(1, min(WINDOW, token_ids.shape[1] - 1) + 1):
        left, right = token_ids[:, :-distance], token_ids[:, distance:]
        same = (text[:, :-distance] == text[:, distance:]) & ~special[left]
        for token, neighbour in ((left, right), (right, left)):
            pair = same & (column[neighbour] >= 0)
            cells = token[pair].astype(np.int64) * most + column[neighbour[pair]]
            cell, times = np.unique(cells, return_counts=True)
            counts[cell] += (times / distance).astype(np.float32)
    return counts.reshape(vocab_size, most)


def _information(counts: np.ndarray) -> np.ndarray:
    """Positive pointwise mutual information, in place of the counts: float32, same shape."""
    rows = np.maximum(counts.sum(1, keepdims=True), 1e-9)
    columns = counts.sum(0, keepdims=True) ** SMOOTHING
    columns /= max(float(columns.sum()), 1e-9)
    seen = counts > 0
    np.divide(counts, rows, out=counts, where=seen)
    np.divide(counts, columns, out=counts, where=seen)
    np.log(counts, out=counts, where=seen)
    return np.maximum(counts, 0.0, out=counts)


def _decomposed(table: np.ndarray, size: int) -> np.ndarray:
    """U sqrt(S) of the largest singular values: float64 [rows, at most ``size``]."""
    width = min(size + SPARE, *table.shape)
    basis = np.random.RandomState(0).standard_normal((table.shape[1], width)).astype(np.float32)
    for _ in range(ITERATIONS):
        basis, _ = np.linalg.qr(table.T @ (table @ basis))
    seen = (table @ basis).astype(np.float64)
    squares, turn = np.linalg.eigh(seen.T @ seen)
    order = np.argsort(-squares)[: min(size, width)]
    kept = np.maximum(squares[order], 1e-300)
    enough = kept > 1e-9 * kept.max(initial=0.0)  # below it there is nothing but rounding
    return (seen @ turn[:, order]) * np.where(enough, kept**-0.25, 0.0)
