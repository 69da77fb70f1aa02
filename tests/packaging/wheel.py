"""The wheel of this project, built from a copy of what is versioned."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging.checkout import ROOT


def source(folder: Path) -> Path:
    """A copy of what is versioned, without anything that a build left behind."""
    copy = folder / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(str(ROOT / name), str(copy))
    for name in ("amp_xla", "recipes", "scripts", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(str(ROOT / name), str(copy / name), ignore=ignore)
    return copy


def build(folder: Path) -> Path:
    """Makes the wheel in ``folder`` with the setuptools of this runtime."""
    copy = source(folder)
    code = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=str(copy),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next(folder.glob("*.whl"))
