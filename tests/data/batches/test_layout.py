"""Rows of a step and plans of an epoch: everything held, nothing overfilled, little padded."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.batches.layout import Layout, best_fit, choose_layout, pack
from amp_xla.errors import DataError

LENGTH = 40
histograms = st.lists(st.integers(0, 30), min_size=1, max_size=LENGTH).map(lambda c: [0, *c, 1])
blocks = st.lists(st.integers(1, 5), min_size=3, max_size=3).map(
    lambda rows: tuple(zip(rows, (LENGTH + 2, 33, 17)))
)


@given(histograms, blocks, st.integers(1, 12))
def test_plans_hold_everything_and_overfill_nothing(
    counts: List[int], blocks: Tuple[Tuple[int, int], ...], slots: int
) -> None:
    layout = Layout(blocks, slots)
    steps, plan = pack(counts, layout)
    packed = [0] * len(counts)
    for (length, held), rows in plan.items():
        assert rows > 0 and len(held) <= slots and sum(held) <= length
        for size in held:
            packed[size] += rows
    assert packed == counts
    for rows, length in blocks:
        assert sum(n for (own, _), n in plan.items() if own == length) == rows * steps
    assert steps == 1 or best_fit(counts, layout, steps - 1) is None


@given(histograms, st.integers(1, 200))
def test_a_layout_holds_about_what_a_step_should(counts: List[int], batch_size: int) -> None:
    length = len(counts) - 1
    layout = choose_layout(counts, length, batch_size)
    lengths = [n for _, n in layout.blocks]
    assert lengths[0] == length and lengths == sorted(set(lengths), reverse=True)
    assert all(rows > 0 for rows, _ in layout.blocks)
    tokens = batch_size * sum(n * count for n, count in enumerate(counts)) / sum(counts)
    assert 0.9 * tokens - length <= layout.tokens <= 1.1 * tokens + length


def test_shorter_rows_save_attention_and_cost_little_padding() -> None:
    """The saving is a quarter on the lengths of reviews: few are as long as the longest."""
    lengths = np.clip(np.random.RandomState(0).lognormal(4.4, 0.6, 17000), 10, 256).astype(int)
    counts = np.bincount(lengths).tolist()
    layout = choose_layout(counts, 256, 32)
    assert len(layout.blocks) == 3
    steps, _ = pack(counts, layout)
    assert steps * layout.tokens < 1.025 * lengths.sum()
    assert sum(rows * n * n for rows, n in layout.blocks) < 0.8 * 256 * layout.tokens
    assert len(lengths) / steps == pytest.approx(32, abs=1)


def test_rows_that_cannot_be() -> None:
    for blocks, slots, message in (
        (((3, 8),), 0, "slots=0"),
        (((0, 8),), 2, "rows=0"),
        (((3, 0),), 2, "length=0"),
        ((), 2, r"\[\]; one or more"),
        (((3, 8), (2, 16)), 2, r"\[8, 16\]; one or more, longest first"),
    ):
        with pytest.raises(DataError, match=message):
            Layout(blocks, slots)
