"""The state machine in the variables of a v1 graph."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings

from amp_xla.backend import tf
from amp_xla.precision import DynamicLossScale as Value
from amp_xla.precision import arrays
from amp_xla.precision.tensorflow import LossScaleVariables
from tests.support.scale_reference import cases, reference


def states(loss_scale, flags):
    """Return (scale, counter) after each step, by session calls."""
    with tf.Graph().as_default(), tf.Session() as session:
        finite = tf.placeholder(tf.bool, [])
        state = LossScaleVariables(loss_scale)
        step = state.adjust(finite)
        session.run(tf.global_variables_initializer())
        seen = []
        for flag in flags:
            session.run(step, {finite: flag})
            seen.append(tuple(session.run(state.state_variables)))
        return seen


@settings(max_examples=12)
@given(case=cases(12))
def test_random_sequences_equal_the_reference(case):
    assert states(Value(**case.arguments), case.finite) == reference(case)


def test_half_precision_is_unscaled_in_float32(session):
    now = LossScaleVariables(2.0**15).at(tf.constant(2.0**15))
    rows = tf.IndexedSlices(tf.constant([[2.0**-11]], tf.float16), tf.constant([7]))
    dense, none, sparse = now.unscale([tf.constant(2.0**-11, tf.float16), None, rows])
    assert none is None and sparse.indices is rows.indices and sparse.dense_shape is None
    assert session.run([dense, sparse.values[0, 0]]) == [2.0**-26, 2.0**-26]


@dataclasses.dataclass(frozen=True, eq=False)
class Quartering(Value):
    """A rule that this package does not have: a quarter after an overflow, else an eighth more."""

    def adjust(self, grads_finite):
        xp = arrays.namespace(self.loss_scale, self.counter, grads_finite)
        factor = xp.where(grads_finite, np.float32(1.125), np.float32(0.25))
        return self.replace(self.loss_scale * factor, self.counter)


def test_a_new_rule_is_a_class_with_an_adjust_and_nothing_else():
    """What CONTRIBUTING.md promises: variables and sessions take it as it is."""
    scales = [scale for scale, _ in states(Quartering(64.0), (True, False, True))]
    assert scales == [72.0, 18.0, 20.25]
