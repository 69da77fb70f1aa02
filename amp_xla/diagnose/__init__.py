"""Shows what mixed precision and XLA do to a graph, without a GPU.

``inspect``, ``compiled`` and ``rehearse`` take a compiled Keras model, or the job that a recipe's
``build`` returns.
"""

import importlib
from typing import Any

__all__ = ("compiled", "inspect", "rehearse")
# Imported when they are used.
_MODULES = {"compiled": "compilation", "inspect": "inspection", "rehearse": "rehearsal"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
