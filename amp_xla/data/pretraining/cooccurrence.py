"""Word vectors from co-occurrence counts, computed in a few seconds before training.

Tokens with similar use have similar neighbours. Training needs many thousand updates to learn that.
"""

from __future__ import annotations

from typing import Iterable, Tuple

import numpy as np

from amp_xla.data.pretraining.prepared import Sequences

WINDOW = 10  # neighbours counted on each side; a neighbour at distance d counts 1 / d
CONTEXTS = 4096  # maximum number of different neighbours; only the most frequent tokens count
CELLS = 1 << 26  # maximum cells in the table of counts: 256 MiB
SMOOTHING = 0.75  # exponent of the neighbours' frequencies, which damps rare ones
SAMPLE, BLOCK = 1 << 15, 64  # maximum sequences that are counted, and sequences per block
ITERATIONS, SPARE = 3, 16  # power iterations and extra columns of the decomposition


def sample(sequences: Sequences) -> np.ndarray:
    """Return int32 [n, L]: all sequences, or evenly spaced blocks of a large corpus."""
    n = len(sequences)
    if n <= SAMPLE:
        return sequences.read(range(n))[0]
    firsts = np.linspace(0, n - BLOCK, SAMPLE // BLOCK).astype(np.int64)
    return sequences.read((firsts[:, None] + np.arange(BLOCK)).ravel())[0]


def word_vectors(
    token_ids: np.ndarray, vocab_size: int, size: int, special_ids: Iterable[int], seed: int = 0
) -> Tuple[np.ndarray, np.ndarray]:
    """Return vectors whose inner products follow the mutual information of two tokens.

    A matrix of positive pointwise mutual information is reduced to ``size`` dimensions, U sqrt(S)
    (Levy, Goldberg & Dagan, TACL 2015), by a randomized decomposition (Halko et al., arXiv
    0909.4061). A random rotation gives all dimensions the same weight.

    Args:
      token_ids: int [n, L], documents separated by special tokens.
      vocab_size: number of tokens.
      size: dimensions of a vector.
      special_ids: tokens that get no vector and do not count as neighbours.
      seed: seed of the rotation.

    Returns:
      (float32 [vocab_size, size], rows of mean square 1 or zero; bool [vocab_size], True for
      tokens with a vector).
    """
    special = np.zeros(vocab_size, bool)
    special[list(special_ids)] = True
    counts = _counts(token_ids, vocab_size, special)
    seen = np.flatnonzero(counts.any(1))  # tokens that occur in the text
    reduced = _decomposed(_information(counts[seen]), size)
    vectors = np.zeros((vocab_size, size))
    vectors[seen, : reduced.shape[1]] = reduced
    rotation, _ = np.linalg.qr(np.random.RandomState(seed).standard_normal((size, size)))
    vectors = vectors @ rotation
    length = np.sqrt((vectors**2).mean(1, keepdims=True))
    known = length[:, 0] > 1e-6
    vectors[known] /= length[known]
    vectors[~known] = 0.0
    return vectors.astype(np.float32), known


def _counts(token_ids: np.ndarray, vocab_size: int, special: np.ndarray) -> np.ndarray:
    """Return float32 [vocab_size, C]: how often the C most frequent tokens are near each token."""
    frequency = np.bincount(token_ids.ravel(), minlength=vocab_size)
    frequency[special] = 0
    width = min(CONTEXTS, max(1, CELLS // vocab_size), int(np.count_nonzero(frequency)))
    column = np.full(vocab_size, -1, np.int64)
    column[np.argsort(-frequency, kind="stable")[:width]] = np.arange(width)
    # A special token separates documents: a pair across it does not count.
    text = np.cumsum(special[token_ids], axis=1)
    counts = np.zeros(vocab_size * width, np.float32)
    for distance in range(1, min(WINDOW, token_ids.shape[1] - 1) + 1):
        left, right = token_ids[:, :-distance], token_ids[:, distance:]
        same = (text[:, :-distance] == text[:, distance:]) & ~special[left]
        for token, neighbour in ((left, right), (right, left)):
            pair = same & (column[neighbour] >= 0)
            cells = token[pair].astype(np.int64) * width + column[neighbour[pair]]
            cell, times = np.unique(cells, return_counts=True)
            counts[cell] += (times / distance).astype(np.float32)
    return counts.reshape(vocab_size, width)


def _information(counts: np.ndarray) -> np.ndarray:
    """Replace counts by their positive pointwise mutual information; return the same array."""
    rows = np.maximum(counts.sum(1, keepdims=True), 1e-9)
    columns = counts.sum(0, keepdims=True) ** SMOOTHING
    columns /= max(float(columns.sum()), 1e-9)
    seen = counts > 0
    np.divide(counts, rows, out=counts, where=seen)
    np.divide(counts, columns, out=counts, where=seen)
    np.log(counts, out=counts, where=seen)
    return np.maximum(counts, 0.0, out=counts)


def _decomposed(table: np.ndarray, size: int) -> np.ndarray:
    """Return U sqrt(S) of the largest singular values: float64 [rows, at most ``size``]."""
    width = min(size + SPARE, *table.shape)
    basis = np.random.RandomState(0).standard_normal((table.shape[1], width)).astype(np.float32)
    for _ in range(ITERATIONS):
        basis, _ = np.linalg.qr(table.T @ (table @ basis))
    seen = (table @ basis).astype(np.float64)
    squares, turn = np.linalg.eigh(seen.T @ seen)
    order = np.argsort(-squares)[: min(size, width)]
    largest = np.maximum(squares[order], 1e-300)
    significant = largest > 1e-9 * largest.max(initial=0.0)  # smaller values are rounding errors
    return (seen @ turn[:, order]) * np.where(significant, largest**-0.25, 0.0)
