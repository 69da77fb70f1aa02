"""The state machine in the variables of a v1 graph, and in a tf.function that it calls."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.precision import DynamicLossScale as Value
from amp_xla.precision import arrays
from amp_xla.precision.tensorflow import LossScaleVariables
from tests.precision.reference import cases, reference


def run_graph(case, wrap=lambda step: step):
    """Return (scale, counter) after each step, by session calls."""
    with tf.Graph().as_default(), tf.Session() as session:
        finite = tf.placeholder(tf.bool, [])
        state = LossScaleVariables(Value(**case.arguments))
        step = wrap(lambda flag: tf.group(state.adjust(flag)))(finite)
        session.run(tf.global_variables_initializer())
        seen = []
        for flag in case.finite:
            session.run(step, {finite: flag})
            scale, counter = session.run(state.state_variables)
            seen.append((float(scale), int(counter)))
        return seen


def run_function(case):
    """Variables moved inside a tf.function that the graph calls."""
    return run_graph(case, lambda step: backend.tensorflow().function(lambda f: (step(f), f)[1]))


RUNS = pytest.mark.parametrize("run", [run_graph, run_function])


@RUNS
@settings(max_examples=12)
@given(case=cases(12))
def test_random_sequences_equal_the_reference(run, case):
    assert run(case) == reference(case)


def test_verbs_in_a_graph(session):
    state = LossScaleVariables(2.0**15)
    now = state.at(state.loss_scale)
    loss = now.scale(tf.constant(4.0, tf.float16))
    rows = tf.IndexedSlices(tf.constant([[2.0**-11]], tf.float16), tf.constant([7]))
    dense, none, sparse = now.unscale([tf.constant(2.0**-11, tf.float16), None, rows])
    assert none is None and isinstance(sparse, tf.IndexedSlices)
    assert sparse.dense_shape is None and sparse.indices is rows.indices
    assert loss.dtype == dense.dtype == sparse.dtype == tf.float32
    assert session.run([loss, dense, sparse.values[0, 0]]) == [2.0**17, 2.0**-26, 2.0**-26]
    assert state.state_variables == []


@dataclasses.dataclass(frozen=True, eq=False)
class Quartering(Value):
    """A rule that this package does not have: a quarter after an overflow, else an eighth more."""

    def adjust(self, grads_finite):
        xp = arrays.namespace(self.loss_scale, self.counter, grads_finite)
        factor = xp.where(grads_finite, np.float32(1.125), np.float32(0.25))
        return self.replace(self.loss_scale * factor, self.counter)


def test_a_new_rule_is_a_class_with_an_adjust_and_nothing_else():
    """What CONTRIBUTING.md promises: variables and sessions take it as it is."""
    with tf.Graph().as_default(), tf.Session() as session:
        finite = tf.placeholder(tf.bool, [])
        state = LossScaleVariables(Quartering(64.0))
        step = state.adjust(finite)
        session.run(tf.global_variables_initializer())
        seen = []
        for flag in (True, False, True):
            session.run(step, {finite: flag})
            seen.append(float(session.run(state.loss_scale)))
    assert seen == [72.0, 18.0, 20.25]
