"""The memory model recovers its terms, and refuses probes that cannot tell them apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.errors import AmpXlaError
from amp_xla.xla.memory import MemoryModel, fit, probes, unseen

sizes = st.floats(0, 1e6)


@given(st.floats(1e8, 1e10), sizes, st.floats(1.0, 1e3), st.integers(1, 64), st.integers(16, 512))
def test_four_exact_probes_predict_any_other_batch(constant, token, pair, rows, length):
    true = MemoryModel(constant, token, pair)
    model = fit([(b, n, int(true.predict(b, n))) for b, n in probes(rows, length)])
    for b, n in ((rows, length), (7, 100), (3 * rows, length)):
        assert model.predict(b, n) == pytest.approx(true.predict(b, n), rel=0.02)


@given(st.integers(4, 64), st.integers(16, 512))
def test_six_batches_are_none_of_the_probes(rows, length):
    others = unseen(rows, length)
    assert len(set(others)) == 6 and not set(others) & set(probes(rows, length))


def test_noise_never_makes_a_term_negative():
    rng = np.random.RandomState(0)
    true = MemoryModel(5e8, 0.0, 0.0)
    for _ in range(50):
        seen = [(b, n, int(true.predict(b, n) + rng.normal(0, 1e7))) for b, n in probes(8, 128)]
        model = fit(seen)
        assert min(model.constant, model.token, model.pair) >= 0


def test_the_largest_batch_fits_and_one_step_more_does_not():
    model = MemoryModel(1e9, 1e5, 100.0)
    most = model.largest(128, 8e9)
    assert most % 8 == 0
    assert model.predict(most, 128) <= 8e9 < model.predict(most + 8, 128)
    assert model.largest(128, 0.9e9) == 0


@pytest.mark.parametrize("seen", [[(8, 64, 1), (8, 128, 2)], [(8, 64, 5)] * 4])
def test_probes_that_say_too_little_are_refused(seen):
    with pytest.raises(AmpXlaError, match="probes"):
        fit(seen)


def test_a_model_in_which_rows_cost_nothing_says_so():
    with pytest.raises(AmpXlaError, match="cost nothing"):
        MemoryModel(1e9, 0.0, 0.0).largest(128, 2e9)
