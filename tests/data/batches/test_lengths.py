"""The chosen bucket lengths pad least."""

from __future__ import annotations

import itertools
from typing import List, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.batches.options import MULTIPLE, choose_lengths


def bucket_tokens(sizes: Sequence[int], buckets: Sequence[int]) -> int:
    return int(np.asarray(buckets)[np.searchsorted(buckets, sizes)].sum())


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_no_other_choice_pads_less(sizes: List[int], shapes: int, spare: int) -> None:
    limit = max(sizes) + spare
    chosen = choose_lengths(sizes, shapes, limit)
    assert 1 <= len(chosen) <= shapes and chosen == sorted(set(chosen))
    assert limit >= chosen[-1] >= max(sizes)
    assert all(length % MULTIPLE == 0 or length == limit for length in chosen)
    top = -(-max(sizes) // MULTIPLE) * MULTIPLE
    grid = sorted({min(length, limit) for length in range(MULTIPLE, top + 1, MULTIPLE)})
    best = min(
        bucket_tokens(sizes, (*some, grid[-1]))
        for count in range(shapes)
        for some in itertools.combinations(grid[:-1], count)
    )
    assert bucket_tokens(sizes, chosen) == best


def test_samples_beyond_the_cut_count_as_cut() -> None:
    assert choose_lengths([5, 300, 400], 2, 100) == [8, 100]
    assert choose_lengths([5, 300, 400], 2, 104) == [8, 104]
    assert choose_lengths([5, 5, 5], 6, 96) == [8]
