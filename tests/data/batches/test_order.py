"""Orders are permutations, look random, and never change between versions."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_xla.data.batches.order import MAX_N, TABLE, permutation

numbers = st.integers(-(2**70), 2**70)


@given(st.integers(0, 3000), numbers, st.integers(0, 1000), st.integers(0, 9))
def test_it_is_a_permutation(n: int, seed: int, epoch: int, stream: int) -> None:
    order = permutation(n, seed, epoch, stream)
    assert len(order) == n
    assert np.array_equal(np.sort(order[:]), np.arange(n))
    assert np.array_equal(np.sort(order.at_once()), np.arange(n))


@given(st.integers(TABLE + 1, TABLE + 3000), numbers)
@settings(max_examples=20)
def test_a_computed_one_is_a_permutation(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(permutation(n, seed, 0)[:]), np.arange(n))


@given(st.integers(1, 10**6), numbers, st.data())
def test_any_part_is_that_part_of_the_whole(n: int, seed: int, data: st.DataObject) -> None:
    order = permutation(n, seed, 3)
    start = data.draw(st.integers(0, n - 1))
    stop = min(n, start + 50)
    part = order[start:stop]
    assert part.dtype == np.int64
    assert part.tolist() == [int(order[i]) for i in range(start, stop)]
    assert np.array_equal(order[np.arange(start, stop).reshape(1, -1)], part[None])
    if n <= TABLE:
        assert np.array_equal(order[:][start:stop], part)


@given(st.integers(2**40, MAX_N), numbers)
def test_huge_ranges_cost_nothing(n: int, seed: int) -> None:
    order = permutation(n, seed, 0)
    ends = np.array([0, 1, n // 2, n - 2, n - 1])
    values = order[ends]
    assert len(set(values.tolist())) == 5 and values.min() >= 0 and values.max() < n
    with pytest.raises(IndexError):
        order[n]
    with pytest.raises(IndexError):
        order[np.array([-1])]


def test_sizes_that_cannot_be() -> None:
    for n in (-1, MAX_N + 1):
        with pytest.raises(ValueError, match="allowed"):
            permutation(n, 0, 0)


def test_seed_epoch_stream_and_size_all_matter() -> None:
    made = [
        permutation(n, seed, epoch, stream)[:100].tolist()
        for n, seed, epoch, stream in itertools.product((500, 501), (0, 1, -1), (0, 1), (0, 1))
    ]
    for one, other in itertools.combinations(made, 2):
        assert sum(a == b for a, b in zip(one, other)) < 8


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations the statistic lies above its mean (near 0 if uniform)."""
    expected = counts.sum() / counts.size
    value = float(((counts - expected) ** 2 / expected).sum())
    return (value - (counts.size - 1)) / (2 * (counts.size - 1)) ** 0.5


@pytest.fixture(params=["table", "computed"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The network is for large ranges; on a small one its faults would show best."""
    if request.param == "computed":
        monkeypatch.setattr("amp_xla.data.batches.order.TABLE", 0)
    return str(request.param)


def test_every_sample_is_as_likely_everywhere(kind: str) -> None:
    """First, second and joint moments over epochs, as for a fair shuffle."""
    n, epochs = 37, 4000
    orders = np.stack([permutation(n, 1, e)[:] for e in range(epochs)])
    where = np.stack([np.bincount(orders[:, i], minlength=n) for i in range(n)])
    # Rows and columns of `where` have fixed sums, hence the smaller deviation: 4 is far out.
    assert abs(chi_square(where)) < 5
    follows = np.bincount(((orders[:, 1:] - orders[:, :-1]) % n).reshape(-1), minlength=n)[1:]
    assert abs(chi_square(follows)) < 5  # no sample prefers a neighbour
    rising = (orders[:, 1:] > orders[:, :-1]).mean()
    assert abs(rising - 0.5) < 0.01
    fixed = (orders == np.arange(n)).sum(1).mean()
    assert abs(fixed - 1.0) < 0.08  # a fair shuffle leaves one in place on the average


def test_small_ranges_reach_every_order() -> None:
    seen = collections.Counter(tuple(permutation(5, 9, e)[:].tolist()) for e in range(6000))
    assert len(seen) == 120
    assert chi_square(np.array(list(seen.values()), float)) < 5


def test_the_order_is_the_same_in_every_version() -> None:
    """Resumed runs rely on it. A change here needs a new key in `order.py`, said in CHANGELOG."""
    assert permutation(1000, 42, 7)[:8].tolist() == [25, 373, 133, 123, 575, 806, 528, 853]
    assert permutation(10**12, 42, 7)[:3].tolist() == [971399545815, 832530387464, 101803336145]
    assert permutation(10**5, 42, 7).at_once()[:4].tolist() == [62114, 44979, 4100, 34242]
