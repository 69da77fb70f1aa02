"""Random sequences of update kinds in eager code, compared with NumPy.

A script may abandon a step, scale by hand, and mix steps with and without scaling.
"""

import numpy as np
import pytest
from hypothesis import strategies as st

from amp_xla import backend
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support import update_sequences as updates

tf = backend.tensorflow()
TF1 = backend.kind() == "tf1"
SGD = (tf.keras.optimizers if TF1 else tf.keras.optimizers.legacy).SGD

pytestmark = pytest.mark.filterwarnings("ignore::amp_xla.precision.LossScaleWarning")


def take(optimizer, named, micro):
    """Take or abandon a step; return its decision."""
    weights = [named[name] for name in updates.HEADS[micro.kind]]
    with tf.GradientTape() as tape:
        loss = (
            tf.add_n([tf.reduce_sum(v * updates.SLOPES) for v in weights]) * micro.factor
            + micro.shift
        )
        if micro.kind == "by hand":
            loss = loss * optimizer.loss_scale
        elif micro.kind != "plain":
            loss = optimizer.get_scaled_loss(loss)
    grads = tape.gradient(loss, weights)
    if micro.kind != "plain":
        grads = optimizer.get_unscaled_gradients(grads)
    if micro.kind == "clipped":
        grads, _ = tf.clip_by_global_norm(grads, updates.CLIP)
    if micro.after != 0:
        grads = [g + micro.after for g in grads]
    return True if micro.abandoned else bool(optimizer.apply_gradients(zip(grads, weights)))


def check(case):
    inner = SGD(updates.RATE, momentum=updates.MOMENTUM)
    optimizer = LossScaleOptimizer(inner, updates.scale(), accumulate=case[1])
    named = {name: tf.Variable(tf.ones(2), name=name) for name in "eab"}

    def train(micro):
        finite = take(optimizer, named, micro)
        weights = {name: variable.numpy() for name, variable in named.items()}
        return finite, weights, [v.numpy() for v in optimizer.state_variables], {}

    if updates.follow(case, train):
        assert not any(np.any(v.numpy()) for v in optimizer.window.state_variables)


# Unscaled gradients of an abandoned step still count if the next gradients are never unscaled:
# they may come from them.
SEQUENCES = st.one_of(
    updates.sequences(("whole", "head", "clipped"), abandon=True),
    updates.sequences(("by hand",), abandon=True),
    updates.sequences(("whole", "head", "clipped", "plain"), abandon=False),
    updates.sequences(("by hand", "plain"), abandon=False),
)
test_random_sequences, test_a_thousand = updates.checked(SEQUENCES, check)
