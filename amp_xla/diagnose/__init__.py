"""Shows what mixed precision does to a graph, without a GPU.

``inspect`` and ``rehearse`` take a compiled Keras model, or the job that a recipe's ``build``
returns.
"""

from amp_xla.diagnose.inspection import inspect
from amp_xla.diagnose.rehearsal import rehearse

__all__ = ("inspect", "rehearse")
