"""The eager snippets of docs/precision.md, and a step in two groups of variables."""

from __future__ import annotations

from amp_xla import backend
from amp_xla.precision.compat import sok
from tests.support.running import run_python
from tests.support.snippets import blocks

tf = backend.tensorflow()
TF1 = backend.kind() == "tf1"


def test_two_groups_are_one_step_of_a_newer_optimizer():
    """The two updates of SparseOperationKit's step, whose whole example tests/sok runs."""
    table, kernel = tf.Variable(tf.ones([50, 8]), name="embeddings"), tf.Variable(tf.ones([8, 1]))
    groups = sok.split_embedding_variable_from_others([table, kernel])
    assert [len(group) for group in groups] == [1, 1]

    inner = tf.keras.optimizers.Adam(0.05)
    optimizer = sok.LossScaleOptimizer(inner, True, 2.0**8, 2)  # in TensorFlow 2's order

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.gather(table, [1, 7, 7]) @ kernel))
            scaled = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled, groups)
        unscaled = [optimizer.get_unscaled_gradients(part) for part in scaled_gradients]
        for part, group in zip(unscaled, groups):
            optimizer.apply_gradients(zip(part, group), experimental_aggregate_gradients=False)

    optimizer.build([table, kernel])
    train_step = tf.function(step)
    for _ in range(20):
        train_step()
    assert int(optimizer.applied_steps) == int(optimizer.iterations) == 20
    assert float(optimizer.loss_scale) == 2.0**18  # ten growths in twenty steps, not twenty


def test_our_documentations_blocks_run_as_a_script():
    code = blocks("eager")[0] if TF1 else "\n".join(blocks("eager"))
    if TF1:
        code = code.replace("optimizers.legacy", "optimizers").replace(
            "import tensorflow as tf", "import tensorflow as tf; tf.enable_eager_execution()"
        )
    done = run_python("-c", code)
    assert done.code == 0, done.err
