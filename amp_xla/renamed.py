"""Modules that documents and users' scripts import by an older name.

``import amp_xla.precision.jmp`` gives the very module ``amp_xla.precision.compat.jmp``, whichever
of the two is imported first. Nothing in this package imports by an old name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, Optional

# Old name -> new one; what lies below an old name lies below the new one.
NAMES = {
    "amp_xla.config": "amp_xla.process.arguments",
    "amp_xla.data.errors": "amp_xla.errors",
    "amp_xla.flags": "amp_xla.settings.flags",
    "amp_xla.precision.jax_optax": "amp_xla.precision.jax.optax",
    "amp_xla.precision.jmp": "amp_xla.precision.compat.jmp",
    "amp_xla.precision.keras": "amp_xla.precision.compat.keras",
    "amp_xla.precision.neurai": "amp_xla.precision.compat.neurai",
    "amp_xla.precision.sok": "amp_xla.precision.compat.sok",
    "amp_xla.rewrite": "amp_xla.diagnose",
    "amp_xla.training.derivatives": "amp_xla.models.derivatives",
    "amp_xla.training.dropout": "amp_xla.models.dropout",
    "amp_xla.training.losses": "amp_xla.models.losses",
    "amp_xla.training.model": "amp_xla.models.encoders",
    "amp_xla.training.optimizing": "amp_xla.optimizers.scheduled",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Optional[Any]:
        old = next((n for n in NAMES if name == n or name.startswith(f"{n}.")), None)
        if old is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, self)
        spec.loader_state = NAMES[old] + name[len(old) :]
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        # The import system puts `spec` into the module, and a module has one name.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run under its own name already."""
        module.__spec__ = module.__spec__.loader_state  # type: ignore[union-attr]


def install() -> None:
    """Lets the old names be imported; called when the package is."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First: an old checkout leaves folders of bytecode that would pass for packages.
        sys.meta_path.insert(0, _Finder())
