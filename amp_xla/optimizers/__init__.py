"""Optimizers and learning-rate schedules for both TensorFlows, as ``tf.train`` optimizers."""
