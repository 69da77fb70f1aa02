"""NeurAI's names: ``from amp_xla.precision.compat.neurai import policy, scale``.

Both are the module ``compat.jmp``.
"""

from amp_xla.precision.compat import jmp as policy
from amp_xla.precision.compat import jmp as scale

__all__ = ("policy", "scale")
