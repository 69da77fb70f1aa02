"""The chosen bucket lengths pad least."""

from __future__ import annotations

import itertools
from typing import List, Optional, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.batches.lengths import choose_lengths
from amp_xla.errors import DataError


def bucket_tokens(sizes: Sequence[int], buckets: Sequence[int]) -> int:
    return int(np.asarray(buckets)[np.searchsorted(buckets, sizes)].sum())


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(1, 4),
    st.sampled_from([1, 4, 8]),
    st.one_of(st.none(), st.integers(0, 9)),
)
def test_no_other_choice_pads_less(
    sizes: List[int], shapes: int, multiple: int, spare: Optional[int]
) -> None:
    limit = None if spare is None else max(sizes) + spare
    chosen = choose_lengths(sizes, shapes, multiple, limit)
    assert 1 <= len(chosen) <= shapes and chosen == sorted(set(chosen))
    assert chosen[-1] >= max(sizes) and (limit is None or chosen[-1] <= limit)
    assert all(length % multiple == 0 or length == limit for length in chosen)
    top = -(-max(sizes) // multiple) * multiple
    grid = list(range(multiple, top + 1, multiple))
    if limit is not None:
        grid = sorted({min(length, limit) for length in grid})
    best = min(
        bucket_tokens(sizes, (*some, grid[-1]))
        for count in range(shapes)
        for some in itertools.combinations(grid[:-1], count)
    )
    assert bucket_tokens(sizes, chosen) == best


def test_samples_beyond_the_cut_count_as_cut() -> None:
    assert choose_lengths([5, 300, 400], 2, 8, max_length=100) == [8, 100]
    assert choose_lengths([5, 300, 400], 2, 8, max_length=104) == [8, 104]
    assert choose_lengths([5, 5, 5], 6) == [8]


@pytest.mark.parametrize(
    "arguments", [([], 1), ([0, 3], 1), ([3], 0), ([3], 1, 0), ([3], 1, 8, 0), ([-2], 1)]
)
def test_numbers_that_cannot_be(arguments: tuple) -> None:
    with pytest.raises(DataError):
        choose_lengths(*arguments)
