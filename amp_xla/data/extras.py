"""Optional packages that some kinds of data need."""

from __future__ import annotations

import importlib
from typing import Any

from amp_xla.errors import DataError


def extra(module: str, use: str) -> Any:
    """Import a module; raise ``DataError`` that names ``use`` if its package is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise DataError(f"{use} needs the package {package} (pip install {package})") from None
