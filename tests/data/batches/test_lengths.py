"""The lengths chosen are the best there are, and so is where leftovers go."""

from __future__ import annotations

import itertools
from typing import List, Optional, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.batches.lengths import choose_lengths, plan_leftovers
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


buckets = st.lists(
    st.tuples(st.integers(0, 70), st.integers(1, 9), st.integers(1, 16)), min_size=1, max_size=6
)


def plan_cost(counts: List[int], lengths: List[int], rows: List[int], ups: Sequence[bool]) -> int:
    cost = carried = 0
    for count, length, size, up in zip(counts, lengths, rows, ups):
        total = count + carried
        carried = total % size if up else 0
        cost += -(-(total - carried) // size) * size * length
    assert carried == 0
    return cost


@given(buckets)
def test_no_other_plan_costs_less(data: list) -> None:
    counts, steps, rows = (list(column) for column in zip(*data))
    lengths = np.cumsum(steps).tolist()
    passed = plan_leftovers(counts, lengths, rows)
    carried = cost = 0
    for count, length, size, up in zip(counts, lengths, rows, passed):
        total = count + carried
        assert up in (0, total % size)
        cost += -(-(total - up) // size) * size * length
        carried = up
    assert carried == 0
    best = min(
        plan_cost(counts, lengths, rows, (*ups, False))
        for ups in itertools.product((False, True), repeat=len(counts) - 1)
    )
    assert cost == best


@given(buckets)
def test_dropping_drops_from_the_longest_only(data: list) -> None:
    counts, steps, rows = (list(column) for column in zip(*data))
    passed = plan_leftovers(counts, np.cumsum(steps).tolist(), rows, drop_remainder=True)
    carried = 0
    for count, size, up in list(zip(counts, rows, passed))[:-1]:
        assert (count + carried - up) % size == 0 and up < size
        carried = up
    assert passed[-1] == 0
