"""The TensorFlow 2 snippets of the documents, adapted in their import lines and slips."""

from __future__ import annotations

import numpy as np
import pytest
import tf_keras

from amp_xla import backend
from amp_xla.precision.compat import sok
from amp_xla.precision.compat.keras import set_policy
from tests.precision.snippets import blocks, run

tf = backend.tensorflow()


@pytest.fixture(autouse=True)
def float32_afterwards():
    yield
    set_policy("float32")


def test_sparse_operation_kits_tf2_step():
    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    tf.keras.mixed_precision.set_global_policy(policy)

    start = tf_keras.initializers.RandomUniform(-0.1, 0.1, seed=1)
    model = tf_keras.Sequential([
        tf_keras.layers.Embedding(50, 8, embeddings_initializer=start),
        tf_keras.layers.GlobalAveragePooling1D(),
        tf_keras.layers.Dense(2, kernel_initializer=start, dtype="float32"),
    ])  # fmt: skip
    loss_object = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf_keras.optimizers.Adam(0.05)  # could be other optimizers as well
    # The slip here: Keras' own LossScaleOptimizer would count growth twice a step.
    optimizer = sok.LossScaleOptimizer(optimizer, initial_scale=2.0**8, dynamic_growth_steps=2)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x)
            loss = loss_object(y, predictions)
            scaled_loss = optimizer.get_scaled_loss(loss)  # this API should be called
        emb_variables, other_variables = sok.split_embedding_variable_from_others(
            model.trainable_variables
        )
        scaled_emb_gradients, scaled_other_gradients = tape.gradient(
            scaled_loss, [emb_variables, other_variables]
        )
        # use this API to scale embedding gradients back to correct value
        emb_gradients = optimizer.get_unscaled_gradients(scaled_emb_gradients)
        # use this API to scale other gradients back to correct value
        other_gradients = optimizer.get_unscaled_gradients(scaled_other_gradients)
        optimizer.apply_gradients(
            zip(emb_gradients, emb_variables), experimental_aggregate_gradients=False
        )
        optimizer.apply_gradients(zip(other_gradients, other_variables))
        return loss

    rng = np.random.RandomState(0)
    x = rng.randint(0, 50, (64, 6))
    y = (x.mean(1) > 25).astype("int64")
    model(x)
    with pytest.raises(ValueError, match="call build"):
        train_step(x, y)  # the newer optimizers must know all variables at once
    optimizer = tf_keras.optimizers.Adam(0.05)
    optimizer = sok.LossScaleOptimizer(optimizer, initial_scale=2.0**8, dynamic_growth_steps=2)
    optimizer.build(model.trainable_variables)
    train_step = tf.function(train_step.python_function)
    losses = [float(train_step(x, y)) for _ in range(20)]
    assert losses[-1] < 0.6 * losses[0]
    assert int(optimizer.applied_steps) == int(optimizer.iterations) == 20
    assert float(optimizer.loss_scale) == 2.0**18  # ten growths in twenty steps, not twenty
    assert isinstance(model.layers[0].embeddings, tf.Variable)


@pytest.mark.parametrize("code", blocks("eager"))
def test_our_documentations_blocks_run(code):
    run(code)
