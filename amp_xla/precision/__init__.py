"""Mixed-precision policies and loss scales for TensorFlow 1.15, TensorFlow 2 and JAX.

Importing this package imports neither TensorFlow nor JAX. The entry points for
frameworks are ``amp_xla.precision.optimizer`` (TensorFlow) and ``amp_xla.precision.jax``.
"""

from amp_xla.precision.arrays import half_dtype, set_half_dtype
from amp_xla.precision.loss_scale import (
    DynamicLossScale,
    LossScaleWarning,
    NoOpLossScale,
    StaticLossScale,
)
from amp_xla.precision.policy import (
    Policy,
    PolicyRules,
    cast_to_full,
    cast_to_half,
    full_precision,
    get_policy,
)

__all__ = (
    "DynamicLossScale",
    "LossScaleWarning",
    "NoOpLossScale",
    "Policy",
    "PolicyRules",
    "StaticLossScale",
    "cast_to_full",
    "cast_to_half",
    "full_precision",
    "get_policy",
    "half_dtype",
    "set_half_dtype",
)
