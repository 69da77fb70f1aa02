"""NeurAI's names: ``from amp_xla.precision.compat.neurai import policy, scale``."""

from amp_xla.precision.compat.neurai import policy, scale

__all__ = ("policy", "scale")
