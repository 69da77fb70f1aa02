"""The moving average of the weights against numpy, and what using it leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.optimizers.adamw import AdamW
from amp_xla.optimizers.average import averaged, in_place
from amp_xla.optimizers.lamb import LAMB
from amp_xla.precision.optimizer import LossScaleOptimizer

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
