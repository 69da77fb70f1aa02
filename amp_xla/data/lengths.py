"""Which padded lengths a corpus deserves, and what to do with the samples that fill no batch."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.errors import DataError


def choose_lengths(
    lengths: Sequence[int],
    max_shapes: int,
    multiple_of: int = 8,
    max_length: Optional[int] = None,
) -> List[int]:
    """At most `max_shapes` padded lengths with the fewest padded tokens over `lengths`.

    Each result is a multiple of `multiple_of`, or `max_length` where that is less than the next
    multiple. Samples longer than `max_length` (tokens) count as cut to it; without it nothing is
    cut. The optimum is exact: dynamic programming over the histogram, cost(i, j) = samples
    between candidate lengths i and j, padded to j. Fewer lengths come back where more do not pay.
    """
    if max_shapes < 1 or multiple_of < 1:
        raise DataError("max_shapes is {}, multiple_of is {}; allowed: 1 and more".format(
            max_shapes, multiple_of))
    sizes = np.asarray(lengths, np.int64)
    if not sizes.size or int(sizes.min()) < 1:
        raise DataError("lengths must be one or more, each 1 or more")
    if max_length is not None:
        if max_length < 1:
            raise DataError("max_length is {}; allowed: 1 and more".format(max_length))
        sizes = np.minimum(sizes, max_length)
    rounded = -(-sizes // multiple_of) * multiple_of
    if max_length is not None:
        rounded = np.minimum(rounded, max_length)
    # An optimal length is always some sample's own length rounded up: nothing else is a candidate.
    candidates, counts = np.unique(rounded, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    # best[j]: fewest tokens for the samples up to candidate j - 1 with the shapes used so far.
    best = np.concatenate([[0.0], below[1:] * candidates.astype(np.float64)])
    cuts: List[np.ndarray] = []
    for _ in range(1, min(max_shapes, len(candidates))):
        # cost[i, j]: candidates i..j-1 padded to candidate j-1, behind the best for i.
        cost = best[:, None] + (below[None, 1:] - below[:, None]) * candidates[None, :]
        cost[np.tril_indices(len(candidates) + 1, -1, len(candidates))] = np.inf
        cut = np.argmin(cost, axis=0)
        improved = cost[cut, np.arange(len(candidates))]
        cuts.append(cut)
        best = np.concatenate([[0.0], improved])
    chosen: List[int] = []
    end = len(candidates)
    for cut in reversed(cuts):
        if end == 0:
            break
        chosen.append(int(candidates[end - 1]))
        end = int(cut[end - 1])
    if end:
        chosen.append(int(candidates[end - 1]))
    return sorted(chosen)


def plan_leftovers(
    counts: Sequence[int],
    columns: Sequence[int],
    rows: Sequence[int],
    drop_remainder: bool = False,
) -> List[int]:
    """How many samples each bucket passes up to the next longer one: 0, or all that fill no batch.

    counts: samples of each bucket; columns, rows: its shape, shortest first. Exact: the fewest
    tokens of all batches together over every choice. With `drop_remainder` everything is passed
    up, so that only the last bucket drops.
    """
    last = len(counts) - 1
    # After bucket k: passed up -> (tokens so far, choices). Few different remainders survive.
    states: Dict[int, Tuple[int, Tuple[int, ...]]] = {0: (0, ())}
    for k in range(len(counts)):
        reached: Dict[int, Tuple[int, Tuple[int, ...]]] = {}
        for adopted, (tokens, choices) in sorted(states.items()):
            total = counts[k] + adopted
            rest = total % rows[k]
            options = {0, rest} if k < last else {0}
            if drop_remainder and k < last:
                options = {rest}
            for passed in sorted(options):
                batches = -(-(total - passed) // rows[k])
                cost = tokens + batches * rows[k] * columns[k]
                if passed not in reached or cost < reached[passed][0]:
                    reached[passed] = (cost, choices + (passed,))
        states = reached
    return list(states[0][1])
