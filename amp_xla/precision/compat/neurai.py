"""NeurAI's names: ``from amp_xla.precision.compat.neurai import policy, scale``; jmp has both."""

from amp_xla.precision.compat import jmp as policy
from amp_xla.precision.compat import jmp as scale

__all__ = ("policy", "scale")
