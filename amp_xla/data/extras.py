"""Optional packages that some commands and kinds of data need."""

from __future__ import annotations

import importlib
from typing import Any, Optional

from amp_xla.errors import DataError


def extra(module: str, use: str, packages: Optional[str] = None) -> Any:
    """Import a module of an optional package.

    Args:
      module: name of the module.
      use: what needs it, for the message.
      packages: packages to install; None = the package of the module.

    Raises:
      DataError: the package is missing, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # The package may be installed, without one that it imports.
        package = str(error.name or module).split(".")[0]
        if not module.startswith(package):
            packages = None
        raise DataError(
            f"{use} needs the package {package} ({error}): pip install {packages or package}"
        ) from None
