"""Two CPU devices, for strategies; they must be asked for before TensorFlow's first operation."""

from __future__ import annotations

from amp_xla import backend

tf = backend.tensorflow()
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
