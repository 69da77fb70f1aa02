"""NeurAI's names: ``from amp_xla.precision.neurai import policy, scale``."""

from amp_xla.precision.neurai import policy, scale

__all__ = ("policy", "scale")
