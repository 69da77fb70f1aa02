"""The memory model recovers its terms, and refuses probes that cannot tell them apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.errors import AmpXlaError
from amp_xla.speed.memory import DoesNotFit, MemoryModel, fit, largest_batch, probes, unseen

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


class Machine:
    """A memory that follows the model, with noise on what the batch adds, and an end."""

    def __init__(self, true, noise=0.0, holds=np.inf, seed=0):
        self.true, self.noise, self.holds, self.tried = true, noise, holds, []
        self._rng = np.random.RandomState(seed)

    def __call__(self, rows, length):
        self.tried.append(rows)
        added = self.true.predict(rows, length) - self.true.constant
        peak = self.true.constant + added * (1 + self._rng.uniform(-self.noise, self.noise))
        if peak > self.holds:
            raise DoesNotFit
        return int(peak)


TRUE = MemoryModel(4e8, 4e3, 100.0)


@given(st.integers(1, 200), st.integers(16, 512), st.floats(0.5e9, 64e9))
def test_the_largest_batch_fills_a_memory_without_noise(rows, length, limit):
    machine = Machine(TRUE)
    found = largest_batch(machine, rows, length, limit)
    most = TRUE.largest(length, limit)
    if most < 2:
        return
    assert found.seen <= limit and found.rows in machine.tried and len(machine.tried) <= 30
    assert found.rows >= min(0.93 * most, most - 8)
    assert found.seen == pytest.approx(found.predicted, rel=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_noise_costs_a_little_of_the_memory_and_never_the_limit(seed):
    found = largest_batch(Machine(TRUE, noise=0.08, seed=seed), 16, 128, 8e9)
    assert 0.8 * 8e9 < found.seen <= 8e9


@pytest.mark.parametrize("rows", [8, 64, 2000])
def test_memory_that_ends_below_the_limit_is_found_too(rows):
    machine = Machine(TRUE, holds=3e9)
    found = largest_batch(machine, rows, 128, 8e9)
    assert 0.75 * 3e9 < found.seen <= 3e9


def test_a_flat_beginning_does_not_send_the_search_to_the_moon():
    machine = Machine(MemoryModel(1e9, 0.0, 0.0))
    largest_batch(machine, 8, 64, 2e9)
    assert all(b <= 16 * a for a, b in zip([16, *machine.tried[4:]], machine.tried[4:]))


def test_where_no_batch_fits_none_is_found():
    assert largest_batch(Machine(TRUE, holds=1e8), 8, 64, 2e9) is None
    assert largest_batch(Machine(TRUE), 8, 64, 1e8) is None
