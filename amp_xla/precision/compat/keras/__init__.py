"""Keras' names: policies, and a drop-in for ``mixed_precision.LossScaleOptimizer``."""

from amp_xla.precision.compat.keras.loss_scale_optimizer import CUSTOM_OBJECTS, LossScaleOptimizer
from amp_xla.precision.compat.keras.policy import (
    from_keras,
    graph_rewrite,
    set_policy,
    to_keras,
    with_rules,
)

__all__ = (
    "CUSTOM_OBJECTS",
    "LossScaleOptimizer",
    "from_keras",
    "graph_rewrite",
    "set_policy",
    "to_keras",
    "with_rules",
)
