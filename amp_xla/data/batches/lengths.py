"""The bucket lengths that waste least for a corpus."""

from __future__ import annotations

from typing import List, Sequence, Union

import numpy as np

MULTIPLE = 8  # of bucket lengths, for tensor cores


def choose_lengths(
    lengths: Union[Sequence[int], np.ndarray], max_shapes: int, max_length: int
) -> List[int]:
    """Return at most ``max_shapes`` bucket lengths with the fewest padded tokens in all.

    Exact, by dynamic programming over the histogram of ``lengths``, rounded up to ``MULTIPLE``:
    O(h * h * max_shapes) for h different rounded lengths.

    Args:
      lengths: tokens of each sample, of every corpus that uses the buckets.
      max_shapes: most different lengths; fewer are returned if more do not pay.
      max_length: longest sample after cutting. The longest bucket never exceeds it, even if it
        is no multiple: a model may have no position beyond.

    Returns:
      Ascending bucket lengths; the last holds the longest sample.
    """
    rounded = np.minimum(-(-np.asarray(lengths, np.int64) // MULTIPLE) * MULTIPLE, max_length)
    # An optimal length is always the length of a sample, rounded up.
    ends, counts = np.unique(rounded, return_counts=True)
    samples = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: fewest bucket tokens for the first j candidates with the shapes used so far. All
    # choices hold the same text, so the fewest bucket tokens have the least padding.
    best = np.concatenate([[0], samples[1:] * ends]).astype(np.float64)
    choices: List[np.ndarray] = []
    for _ in range(1, min(max_shapes, len(ends))):
        # cost[i, j]: the best for the first i, and candidates i to j in one more bucket. With
        # i = 0 it uses fewer buckets.
        cost = best[:-1, None] + (samples[None, 1:] - samples[:-1, None]) * ends[None, :]
        cost[np.tril_indices(len(ends), -1)] = np.inf
        choices.append(cost.argmin(0))
        best = np.concatenate([[0], cost.min(0)])
    chosen, end = [], len(ends)
    for choice in reversed(choices):
        chosen.append(int(ends[end - 1]))
        end = int(choice[end - 1])
        if end == 0:
            return chosen[::-1]
    chosen.append(int(ends[end - 1]))
    return chosen[::-1]
