"""Horovod for the tests that start ranks: built once a machine, which takes minutes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from amp_xla import backend

ROOT = Path(__file__).resolve().parents[1]


def need_horovod() -> None:
    """Builds it where it is missing; skips the test where nothing can build it."""
    if importlib.util.find_spec("horovod") is not None:
        return
    if shutil.which("g++") is None and not os.environ.get("CI"):
        pytest.skip("Horovod is not built and there is no g++ to build it with")
    subprocess.run(["scripts/build_horovod.sh", backend.kind()], check=True, cwd=str(ROOT))
