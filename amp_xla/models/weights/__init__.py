"""Pretrained weights, read and checked before training starts. Imports no TensorFlow."""

from __future__ import annotations

from amp_xla.errors import AmpXlaError


class WeightsError(AmpXlaError, ValueError):
    """Weights are missing, damaged, or do not fit the model; the message names file and tensor."""
