"""Optimizers and learning-rate schedules for TensorFlow 1.15 and 2.x, with ``tf.train``'s API."""
