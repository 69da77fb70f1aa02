"""AdamW, LAMB, their average and learning-rate schedules against float64 NumPy."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.training.optimizers.average import averaged, in_place
from amp_xla.training.optimizers.lamb import LAMB
from amp_xla.training.optimizers.schedule import warmup_decay

STEPS = 20
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-6


def reference(kind, weights, gradients, rates, decay, adapts=True):
    """Algorithm 2 of arXiv 1904.00962, or of 1711.05101, in float64."""
    w = weights.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates), 1):
        g = g.astype(np.float64)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        update = m / (1 - BETA1**t) / (np.sqrt(v / (1 - BETA2**t)) + EPSILON) + decay * w
        ratio = 1.0
        if kind is LAMB and adapts and np.linalg.norm(w) > 0 and np.linalg.norm(update) > 0:
            ratio = np.linalg.norm(w) / np.linalg.norm(update)
        w = w - rate * ratio * update
    return w


@pytest.mark.parametrize("kind", [AdamW, LAMB])
@pytest.mark.parametrize("sparse, name", [(False, "kernel"), (True, "kernel"), (False, "bias")])
def test_twenty_steps_equal_the_paper(session, kind, sparse, name):
    plain = name == "bias"
    start = np.random.RandomState(0).randn(6, 4).astype(np.float32)
    rng, rates = np.random.RandomState(1), [0.01 * (i + 1) / STEPS for i in range(STEPS)]
    gradients = [rng.randn(6, 4).astype("f4") * 10.0 ** rng.randint(-6, 1) for _ in range(STEPS)]
    variable = tf.get_variable(name, initializer=start)
    feed, rate = tf.placeholder(tf.float32, [6, 4]), tf.placeholder(tf.float32, [])
    optimizer = kind(rate, weight_decay=0.1)
    assert optimizer.decays(variable) is not plain
    gradient = tf.identity(feed)
    if sparse:
        for each in gradients:
            each[[1, 4]] = 0.0
        rows = tf.constant([0, 2, 3, 5, 0])  # row 0 twice: its parts add up before they are squared
        parts = tf.gather(feed, rows) * tf.constant([[0.5], [1], [1], [1], [0.5]])
        gradient = tf.IndexedSlices(parts, rows, tf.constant([6, 4]))
    update = optimizer.apply_gradients([(gradient, variable)])
    session.run(tf.global_variables_initializer())
    for g, r in zip(gradients, rates):
        session.run(update, {feed: g, rate: r})
    result = session.run(variable)
    expected = reference(kind, start, gradients, rates, 0.0 if plain else 0.1, not plain)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_zero_layer_moves_at_the_plain_rate(session):
    variable = tf.get_variable("kernel", initializer=np.zeros([3], np.float32))
    update = LAMB(0.5, weight_decay=0.0).apply_gradients([(tf.ones([3]), variable)])
    session.run(tf.global_variables_initializer())
    session.run(update)
    np.testing.assert_allclose(session.run(variable), -0.5, rtol=1e-5)


def test_schedules(session):
    def rates_of(steps, **options):
        step = tf.placeholder(tf.int64, [])
        rate = warmup_decay(step, **options)
        return [float(session.run(rate, {step: i})) for i in steps]

    rates = rates_of(range(11), peak=1.0, warmup_steps=2, total_steps=10)
    np.testing.assert_allclose(rates[:3], [0.5, 1.0, 8 / 9], rtol=1e-6)
    assert 0 < rates[9] < 0.2 and rates[10] == 0.0
    assert all(a > b for a, b in zip(rates[1:], rates[2:]))
    cosine = rates_of(range(11), peak=2.0, warmup_steps=0, total_steps=10, decay="cosine")
    assert cosine[0] == pytest.approx(1 + np.cos(np.pi / 11))
    assert cosine[10] == pytest.approx(0, abs=1e-6)
    constant = rates_of(range(5), peak=2.0, warmup_steps=4, total_steps=10, decay="constant")
    assert constant == [0.5, 1.0, 1.5, 2.0, 2.0]


DECAY = 0.9


@pytest.mark.parametrize("rule, window", [(AdamW, 3), (LAMB, 1)])
def test_the_average_is_that_of_the_weights_after_each_update(rule, window):
    K.clear_session()
    start = np.random.RandomState(0).randn(6, 4).astype(np.float32)
    variable = tf.get_variable("kernel", initializer=start)
    feed = tf.placeholder(tf.float32, [6, 4])
    inner = averaged(rule, DECAY)(0.05, weight_decay=0.1)
    optimizer = LossScaleOptimizer(inner, 8.0, accumulate=window)
    update = optimizer.minimize(tf.reduce_sum(variable * feed), var_list=[variable])
    session = backend.session()
    session.run(tf.global_variables_initializer())
    with in_place(optimizer, [variable]):  # none yet
        np.testing.assert_array_equal(K.get_value(variable), start)
    held, rng = [], np.random.RandomState(1)
    for step in range(4 * window):
        gradient = rng.randn(6, 4).astype(np.float32)
        if step == window:  # a step that is skipped must not count twice
            session.run(update, {feed: gradient * np.nan})
        session.run(update, {feed: gradient})
        if int(session.run(optimizer.applied_steps)) > len(held):
            held.append(session.run(variable).astype(np.float64))
    weights = np.array([DECAY ** (len(held) - 1 - i) for i in range(len(held))])
    expected = np.tensordot(weights / weights.sum(), np.array(held), 1)
    before = K.get_value(variable)
    with pytest.raises(RuntimeError), in_place(optimizer, [variable]):
        np.testing.assert_allclose(K.get_value(variable), expected, rtol=1e-5, atol=1e-6)
        raise RuntimeError("an evaluation that fails")
    np.testing.assert_array_equal(K.get_value(variable), before)
