"""A step is judged by its loss as well as by its gradients."""

from __future__ import annotations

import numpy as np

import amp_xla.setup  # noqa: F401
from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.step import TrainStep, initialize_variables


def test_an_infinite_loss_over_finite_gradients_is_skipped() -> None:
    backend.K.clear_session()
    weight = tf.get_variable("w", (), tf.float32, tf.ones_initializer())
    extra = tf.placeholder(tf.float32, [])
    optimizer = LossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), 8.0, warn_after=0)
    # The gradient of the loss is 1, whatever `extra` is.
    step = TrainStep({"extra": extra}, None, weight + extra, optimizer, [weight], tf.constant(0.5))
    initialize_variables()
    found = []
    for number, value in enumerate((0.0, np.inf, np.nan, 1.0)):
        result = step({"extra": value}, number)
        found.append((result.finite, result.applied, float(backend.session().run(weight))))
    assert found == [(True, 1, 0.5), (False, 1, 0.5), (False, 1, 0.5), (True, 2, 0.0)]
    backend.K.clear_session()
