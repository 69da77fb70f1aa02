"""Mixed-precision policies and loss scales for TensorFlow 1.15, TensorFlow 2 and JAX.

Importing this package imports neither TensorFlow nor JAX. The framework doors are
``amp_xla.precision.optimizer`` (TensorFlow) and ``amp_xla.precision.jax``.
"""

from amp_xla.precision.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale

__all__ = ("DynamicLossScale", "NoOpLossScale", "StaticLossScale")
