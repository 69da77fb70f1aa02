"""Which padded lengths a corpus deserves, and where the samples go that fill no batch."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from amp_xla.errors import DataError


def choose_lengths(
    lengths: Union[Sequence[int], np.ndarray],
    max_shapes: int,
    multiple_of: int = 8,
    max_length: Optional[int] = None,
) -> List[int]:
    """At most ``max_shapes`` bucket lengths with the fewest padded tokens in all.

    Exact, by dynamic programming over the histogram of ``lengths`` (each rounded up to
    ``multiple_of``): O(h * h * max_shapes) for h different rounded lengths.

    Args:
      lengths: tokens of each sample, of every corpus that is to use the buckets.
      max_shapes: how many different lengths are allowed; fewer come back where more don't pay.
      multiple_of: bucket lengths are multiples of this; tensor cores want 8.
      max_length: cut length of the corpus. The longest bucket never exceeds it, even if that
        makes it no multiple: a model may have no position beyond.

    Returns:
      Ascending bucket lengths; the last holds the longest sample.

    Raises:
      DataError: no samples, or a number that is not positive.
    """
    if max_shapes < 1 or multiple_of < 1:
        raise DataError(f"shapes={max_shapes}, multiple_of={multiple_of}; both must be positive")
    sizes = np.asarray(lengths, np.int64)
    if not sizes.size or int(sizes.min()) < 1:
        raise DataError("lengths to choose from must be one or more, each positive")
    rounded = -(-sizes // multiple_of) * multiple_of
    if max_length is not None:
        if max_length < 1:
            raise DataError(f"max_length={max_length}; it must be positive")
        rounded = np.minimum(rounded, max_length)
    # An optimal length is always a sample's own, rounded up: nothing else is a candidate.
    ends, counts = np.unique(rounded, return_counts=True)
    samples = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: fewest bucket tokens for the first j candidates with the shapes used so far. The
    # text itself is the same in every choice, so bucket tokens stand for padded tokens.
    best = np.concatenate([[0], samples[1:] * ends]).astype(np.float64)
    choices: List[np.ndarray] = []
    for _ in range(1, min(max_shapes, len(ends))):
        # cost[i, j]: the best for the first i, and candidates i to j in one more bucket. i = 0 is
        # among them, so this is "at most" and not "exactly" so many buckets.
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


def plan_leftovers(
    counts: Sequence[int],
    lengths: Sequence[int],
    rows: Sequence[int],
    drop_remainder: bool = False,
) -> List[int]:
    """How many samples each bucket passes up to the next longer one.

    Each passes up nothing, or exactly what fills no batch. Exact: every combination is weighed by
    the tokens of all batches; equal remainders are followed once.

    Args:
      counts: samples of each bucket, shortest bucket first.
      lengths: tokens of a row, for each bucket.
      rows: rows of a batch, for each bucket.
      drop_remainder: pass up all that fills no batch, so that only the longest bucket drops.

    Returns:
      Samples passed up by each bucket; the last passes none.
    """
    # Passed up so far -> (tokens so far, choices so far).
    states: Dict[int, Tuple[int, Tuple[int, ...]]] = {0: (0, ())}
    for k, (count, length, size) in enumerate(zip(counts, lengths, rows)):
        reached: Dict[int, Tuple[int, Tuple[int, ...]]] = {}
        for adopted, (tokens, choices) in sorted(states.items()):
            total = count + adopted
            rest = total % size
            options = {0, rest}
            if k == len(counts) - 1:
                options = {0}
            elif drop_remainder:
                options = {rest}
            for passed in options:
                cost = tokens + -(-(total - passed) // size) * size * length
                if passed not in reached or cost < reached[passed][0]:
                    reached[passed] = (cost, (*choices, passed))
        states = reached
    return list(states[0][1])
