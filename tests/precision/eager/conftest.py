"""Two CPU devices, for strategies; they must be asked for before TensorFlow's first operation."""

from __future__ import annotations

import pytest

from amp_xla import backend

tf = backend.tensorflow()
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)


@pytest.fixture(scope="session")
def strategies():
    """One of each number of devices: a second would use the first one's collective keys again."""
    make = tf.distribute.MirroredStrategy
    return {1: make(["CPU:0"]), 2: make(["CPU:0", "CPU:1"])}
