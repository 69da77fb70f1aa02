"""tf.distribute replicas decide together; a checkpoint restores the loss scale."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tf_keras

from amp_xla import backend
from amp_xla.precision import DynamicLossScale
from amp_xla.precision.compat import keras as drop_in
from amp_xla.precision.optimizer import LossScaleOptimizer

tf = backend.tensorflow()

CLASSES = {
    "ours": lambda inner: LossScaleOptimizer(inner, DynamicLossScale(8.0, growth_interval=2)),
    "drop-in": lambda inner: drop_in.LossScaleOptimizer(inner, initial_scale=8),
}
FAMILIES = {"legacy": tf_keras.optimizers.legacy, "new": tf_keras.optimizers}


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("name", sorted(CLASSES))
@pytest.mark.parametrize("compiled", [True, False])
def test_replicas_decide_together(strategies, family, name, compiled):
    strategy = strategies[2]
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])
        optimizer = CLASSES[name](FAMILIES[family].SGD(0.5))

    def replica_step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * factor)
            scaled = optimizer.get_scaled_loss(loss)
        grads = optimizer.get_unscaled_gradients(tape.gradient(scaled, [weight]))
        optimizer.apply_gradients(zip(grads, [weight]))

    def step(per_replica):
        factors = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(per_replica[context.replica_id_in_sync_group])
        )
        run(factors)

    def run(factors):
        strategy.run(replica_step, args=(factors,))

    run = tf.function(run) if compiled else run
    step([1.0, 3.0])  # gradients are summed over replicas: 4
    np.testing.assert_allclose(weight.numpy(), [-1.0, 0.0])
    step([1.0, np.nan])  # on one replica only
    np.testing.assert_allclose(weight.numpy(), [-1.0, 0.0])
    copies = strategy.experimental_local_results(weight)
    assert all(np.array_equal(c.numpy(), weight.numpy()) for c in copies)
    scales = strategy.experimental_local_results(optimizer.state_variables[2])
    assert [float(s) for s in scales] == [4.0, 4.0]
    assert int(optimizer.applied_steps.numpy()) == int(optimizer.skipped_steps.numpy()) == 1
    # Keras' class counts skipped steps, too.
    assert int(optimizer.iterations.numpy()) == (2 if name == "drop-in" else 1)


def make(family):
    rng = np.random.RandomState(0)
    weight = tf.Variable(rng.randn(4).astype("float32"))
    scale = DynamicLossScale(4.0, growth_interval=5, minimum=0.25, maximum=2.0**20)
    optimizer = LossScaleOptimizer(FAMILIES[family].Adam(0.05), scale)
    return weight, optimizer, tf.train.Checkpoint(weight=weight, optimizer=optimizer)


def train(weight, optimizer, seed, steps):
    """Noise, a tenth of it infinite; weight, scale, counter and counts after every step."""
    step = tf.function(
        lambda x: optimizer.minimize(lambda: tf.reduce_sum(tf.square(weight * x - 1.0)), [weight])
    )
    rng, seen = np.random.RandomState(seed), []
    for _ in range(steps):
        x = rng.randn(4).astype("float32") if rng.rand() > 0.1 else np.full(4, np.inf, "float32")
        step(tf.constant(x))
        seen.append(weight.numpy().tolist() + [v.numpy() for v in optimizer.state_variables])
    return np.array(seen, "float64")


RESUME = """
import sys
import numpy as np
from tests.precision.eager.test_replicas_and_checkpoints import FAMILIES, make, train
for family in sorted(FAMILIES):
    path = sys.argv[1] + "/" + family + "-1"
    weight, optimizer, checkpoint = make(family)
    status = checkpoint.restore(path)
    seen = train(weight, optimizer, 2, 100)
    status.assert_existing_objects_matched()
    np.save(path + ".npy", seen)
"""


def test_resumed_in_a_new_process_the_next_100_steps_are_identical(tmp_path):
    whole = {}
    for family in sorted(FAMILIES):
        weight, optimizer, checkpoint = make(family)
        train(weight, optimizer, 1, 33)
        assert float(optimizer.loss_scale) != 4.0 and int(optimizer.skipped_steps) > 0
        checkpoint.save(str(tmp_path / family))
        whole[family] = train(weight, optimizer, 2, 100)
    subprocess.run([sys.executable, "-c", RESUME, str(tmp_path)], check=True)
    for family, expected in whole.items():
        np.testing.assert_array_equal(np.load(str(tmp_path / f"{family}-1.npy")), expected)
