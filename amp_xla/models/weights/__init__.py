"""Pretrained weights, read and checked before training starts. Imports no TensorFlow."""

from __future__ import annotations

from amp_xla.errors import AmpXlaError


class WeightsError(AmpXlaError, ValueError):
    """Weights that cannot be used; the message names file, tensor and what is needed."""
