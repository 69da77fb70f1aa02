"""Random sequences of update kinds in eager code, compared with NumPy and a plain Keras optimizer.

A script may abandon a step, scale by hand, and mix steps with and without scaling.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla import backend
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support.update_sequences import (
    CLIP,
    HEADS,
    MOMENTUM,
    RATE,
    SLOPES,
    Reference,
    many,
    scale,
    sequences,
)

tf = backend.tensorflow()
TF1 = backend.kind() == "tf1"
SGD = (tf.keras.optimizers if TF1 else tf.keras.optimizers.legacy).SGD

pytestmark = pytest.mark.filterwarnings("ignore::amp_xla.precision.LossScaleWarning")


def variables():
    return {name: tf.Variable(tf.ones(2), name=name) for name in "eab"}


def take(optimizer, named, micro):
    """Take or abandon a step; return its decision."""
    weights = [named[name] for name in HEADS[micro.kind]]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(v * SLOPES) for v in weights]) * micro.factor + micro.shift
        if micro.kind == "by hand":
            loss = loss * optimizer.loss_scale
        elif micro.kind != "plain":
            loss = optimizer.get_scaled_loss(loss)
    grads = tape.gradient(loss, weights)
    if micro.kind != "plain":
        grads = optimizer.get_unscaled_gradients(grads)
    if micro.kind == "clipped":
        grads, _ = tf.clip_by_global_norm(grads, CLIP)
    if micro.after != 0:
        grads = [g + micro.after for g in grads]
    return True if micro.abandoned else bool(optimizer.apply_gradients(zip(grads, weights)))


def check(case):
    batches, window = case
    optimizer = LossScaleOptimizer(SGD(RATE, momentum=MOMENTUM), scale(), accumulate=window)
    named, plain, own = variables(), SGD(RATE, momentum=MOMENTUM), variables()
    reference, average = Reference(window), np.float32(0.0)
    for micro in batches:
        updates = len(reference.updates)
        finite = take(optimizer, named, micro)
        assert finite == reference.step(micro)
        if micro.kind == "whole" and finite and not micro.abandoned and window == 1:
            average = np.float32(0.5) * average + np.float32(0.5 * micro.factor)
        for means in reference.updates[updates:]:
            plain.apply_gradients([(tf.constant(g), own[n]) for n, g in means.items()])
        weights = {name: variable.numpy() for name, variable in named.items()}
        reference.check(weights, [v.numpy() for v in optimizer.state_variables])
        for name, variable in own.items():
            np.testing.assert_allclose(weights[name], variable.numpy(), rtol=1e-5, atol=1e-6)
    assert window > 1 or average == reference.average
    if window > 1 and (sum(not micro.abandoned for micro in batches) % window) == 0:
        assert not any(np.any(v.numpy()) for v in optimizer.window.state_variables)


# Unscaled gradients of an abandoned step still count if the next gradients are never unscaled:
# they may come from them.
SEQUENCES = st.one_of(
    sequences(("whole", "head", "clipped"), abandon=True),
    sequences(("by hand",), abandon=True),
    sequences(("whole", "head", "clipped", "plain"), abandon=False),
    sequences(("by hand", "plain"), abandon=False),
)


@many(25)
@given(case=SEQUENCES)
def test_random_sequences(case):
    check(case)


@pytest.mark.long
@many(1000)
@given(case=SEQUENCES)
def test_a_thousand_random_sequences(case):
    check(case)
