"""AdamW and the schedule against float64 numpy references."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.optimizers.adamw import AdamW
from amp_xla.optimizers.schedule import warmup_decay


def reference(weights, gradients, rates, decay, beta1=0.9, beta2=0.999, epsilon=1e-6):
    """Algorithm 2 of arXiv 1711.05101 in float64."""
    w = weights.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates), 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        update = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
        w = w - rate * (update + decay * w)
    return w


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name, decays", [("kernel", True), ("bias", False)])
def test_fifty_steps_equal_the_paper(sparse, name, decays):
    rng = np.random.RandomState(0)
    start = rng.randn(6, 4).astype(np.float32)
    gradients = [rng.randn(6, 4).astype(np.float32) * 10.0 ** rng.randint(-6, 1) for _ in range(50)]
    if sparse:
        for g in gradients:
            g[[1, 4]] = 0.0
    rates = [0.01 * (i + 1) / 50 for i in range(50)]
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable(name, initializer=start)
        feed, rate = tf.placeholder(tf.float32, [6, 4]), tf.placeholder(tf.float32, [])
        gradient = feed
        if sparse:
            # Rows twice: duplicates must be summed before the square enters.
            rows = tf.constant([0, 2, 3, 5, 0])
            half = tf.gather(feed, rows) * tf.constant([[0.5], [1], [1], [1], [0.5]])
            gradient = tf.IndexedSlices(half, rows, tf.constant([6, 4]))
        optimizer = AdamW(rate, weight_decay=0.1)
        assert optimizer.decays(variable) is decays
        update = optimizer.apply_gradients([(gradient, variable)])
        session.run(tf.global_variables_initializer())
        for g, r in zip(gradients, rates):
            session.run(update, {feed: g, rate: r})
        result = session.run(variable)
    expected = reference(start, gradients, rates, 0.1 if decays else 0.0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize(
    "options, word", [({"decay": "poly"}, "poly"), ({"warmup_steps": 11}, "warmup_steps=11")]
)
def test_bad_schedules_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        warmup_decay(0, **{"peak": 1.0, "warmup_steps": 0, "total_steps": 10, **options})
