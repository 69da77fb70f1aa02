"""Find a Python of this machine.

uv would not see those of version managers: on PATH they are shims, which fail for most versions.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import List, Sequence

# Folders of version managers; MINOR is e.g. 3.12.
MANAGED = (
    ("PYENV_ROOT", "~/.pyenv", "versions/MINOR.*"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-MINOR.*"),
    ("ASDF_DATA_DIR", "~/.asdf", "installs/python/MINOR.*"),
    ("MISE_DATA_DIR", "~/.local/share/mise", "installs/python/MINOR.*"),
)


def find(minors: Sequence[str]) -> str:
    """Return the path of a Python with the first of the versions `minors` that is here, or ''."""
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    for minor in minors:
        folders = [*_managed(minor), *(f for f in on_path if Path(f).name != "shims")]
        path = shutil.which(f"python{minor}", path=os.pathsep.join(folders))
        if path:
            return path
    return ""


def _managed(minor: str) -> List[str]:
    """Return the folders of version managers that may have a Python of this version ('3.7')."""
    prefixes: List[str] = []
    for variable, default, pattern in MANAGED:
        folder = Path(os.path.expanduser(os.environ.get(variable) or default))
        prefixes += map(str, folder.glob(pattern.replace("MINOR", minor)))
    try:
        conda = Path(os.path.expanduser("~/.conda/environments.txt")).read_text()
    except OSError:
        conda = ""
    return [os.path.join(prefix, "bin") for prefix in (*prefixes, *conda.splitlines()) if prefix]
