"""Which evaluation was the best, and for how many there was no better one."""

from __future__ import annotations

import math
from typing import Any, List

import pytest

from amp_xla.training.state import LoopState


@pytest.mark.parametrize(
    ("values", "higher", "better", "best", "stale"),
    [
        ([0.5, 0.6, 0.6, 0.4], True, [True, True, False, False], 2, 2),
        ([3.0, 4.0, 2.0], False, [True, False, True], 3, 0),
        ([math.nan, math.nan, 9.0, math.nan], False, [False, False, True, False], 3, 1),
        ([math.nan, math.nan], True, [False, False], 0, 2),
    ],
)
def test_the_best_is_kept(
    values: List[float], higher: bool, better: List[bool], best: int, stale: int
) -> None:
    state: Any = LoopState()
    found = []
    for value in values:
        state.step += 1
        found.append(state.judge(value, higher))
    assert (found, state.best_step, state.stale) == (better, best, stale)
