"""What is wanted: settings as values, and as the environment variables TensorFlow reads."""

from amp_xla.settings.resolved import Resolved
from amp_xla.settings.wanted import (
    MAX_HALF_INFINITY,
    MIN_HALF_EPSILON,
    PRECISIONS,
    PREFIX,
    XLA_MODES,
    LossScaleSetting,
    Settings,
)

__all__ = [
    "MAX_HALF_INFINITY",
    "MIN_HALF_EPSILON",
    "PRECISIONS",
    "PREFIX",
    "XLA_MODES",
    "LossScaleSetting",
    "Resolved",
    "Settings",
]
