"""Two CPU devices for strategies, created before TensorFlow's first operation; a training step."""

import pytest

from amp_xla import backend

tf = backend.tensorflow()
collect_ignore = []
if backend.kind() == "tf1":
    tf.compat.v1.enable_eager_execution()
    collect_ignore += ["test_keras_drop_in.py"]  # beside tf-keras' own class
else:
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)


def take_step(optimizer, loss, weights, style):
    """Take one step on ``loss()`` in one of three styles."""
    if style == "callable":
        optimizer.minimize(loss, weights)
        return
    with tf.GradientTape() as tape:
        value = loss() if style == "tape" else optimizer.get_scaled_loss(loss())
    if style == "tape":
        optimizer.minimize(value, weights, tape=tape)
        return
    grads = optimizer.get_unscaled_gradients(tape.gradient(value, weights))
    optimizer.apply_gradients(zip(grads, weights))


@pytest.fixture(scope="session")
def strategies():
    """Return one strategy per number of devices; two would use the same collective keys."""
    make = tf.distribute.MirroredStrategy
    return {1: make(["CPU:0"]), 2: make(["CPU:0", "CPU:1"])}
