"""The checkout, and commands run in it as a user's shell would run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(p.stem for p in (ROOT / "recipes").glob("[!_]*.py"))
# Set by the `make test` that runs these tests; a user's `make` does not inherit them.
FROM_MAKE = (
    *("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "RUNTIME", "RECIPE", "ARGS", "NP"),
    *("HOSTS", "BASE_IMAGE", "IMAGE", "GPUS", "DATA", "RUNS", "ENGINE", "PYTHONPATH"),
)


def shell_environment(**changes: str) -> Dict[str, str]:
    """Return the environment without the variables of make and of this project."""
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in FROM_MAKE and not name.startswith(("AMP_XLA_", "TF_"))
        },
        **changes,
    }


def run(command: List[str], root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run a command in `root`; the result has stdout and stderr as text."""
    return subprocess.run(
        command,
        cwd=str(root),
        env=shell_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def source(folder: Path) -> Path:
    """Return a copy in `folder` of what is versioned, without anything that a build left behind."""
    copy = folder / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(str(ROOT / name), str(copy))
    for name in ("amp_xla", "recipes", "scripts", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(str(ROOT / name), str(copy / name), ignore=ignore)
    return copy
