"""The bound that refuses a batch far too large for the machine, and nothing else."""

from __future__ import annotations

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.process import capacity


def test_memory_is_known_here():
    free = capacity.available()
    assert free is not None and 2**20 < free < 2**50


def test_what_surely_cannot_fit_is_refused_and_the_rest_is_not():
    free = capacity.available()
    assert free is not None
    fitting = int(free / 2 / (96 * 256 * 2))
    capacity.refuse_what_cannot_fit([(1, 96), (fitting, 96)], [192, 64])
    with pytest.raises(AmpXlaError, match="take fewer rows .*--batch-size") as raised:
        capacity.refuse_what_cannot_fit([(16, 8), (4 * fitting, 96)], [192, 64])
    assert f"a step of {4 * fitting:,} rows x 96 tokens needs more than" in str(raised.value)
    assert "\n" not in str(raised.value)
