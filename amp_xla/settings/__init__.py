"""Settings as values, and as the environment variables that TensorFlow reads."""

from amp_xla.settings.values import (
    MAX_HALF_INFINITY,
    MIN_HALF_EPSILON,
    PRECISIONS,
    PREFIX,
    XLA_MODES,
    LossScaleSetting,
    Precision,
    Settings,
    default_loss_scale,
)

__all__ = [
    "MAX_HALF_INFINITY",
    "MIN_HALF_EPSILON",
    "PRECISIONS",
    "PREFIX",
    "XLA_MODES",
    "LossScaleSetting",
    "Precision",
    "Settings",
    "default_loss_scale",
]
