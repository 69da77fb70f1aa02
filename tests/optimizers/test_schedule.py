"""Learning-rate schedules."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.optimizers.schedule import warmup_decay


def rates_of(steps, **options):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = warmup_decay(step, **options)
        return [float(session.run(rate, {step: i})) for i in steps]


def test_warm_up_then_linear():
    rates = rates_of(range(11), peak=1.0, warmup_steps=2, total_steps=10)
    np.testing.assert_allclose(rates[:3], [0.5, 1.0, 8 / 9], rtol=1e-6)
    assert 0 < rates[9] < 0.2 and rates[10] == 0.0
    assert all(a > b for a, b in zip(rates[1:], rates[2:]))


def test_cosine_and_constant():
    cosine = rates_of(range(11), peak=2.0, warmup_steps=0, total_steps=10, decay="cosine")
    assert cosine[0] == pytest.approx(1 + np.cos(np.pi / 11))
    assert cosine[10] == pytest.approx(0, abs=1e-6)
    constant = rates_of(range(5), peak=2.0, warmup_steps=4, total_steps=10, decay="constant")
    assert constant == [0.5, 1.0, 1.5, 2.0, 2.0]
