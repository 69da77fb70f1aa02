"""Horovod for the tests that start ranks: built once a machine, which takes minutes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
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


def on_two_ranks(module: str, folder: Path, *words: str, fails: bool = False) -> str:
    """Run a module with FOLDER and ``words`` on two ranks over Gloo; return its output."""
    need_horovod()
    runner = Path(sys.executable).parent / "horovodrun"
    done = subprocess.run(
        [sys.executable, str(runner), "--gloo", "-np", "2", "-H", "localhost:2"]
        + [sys.executable, "-m", module, str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=str(ROOT),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=280,
    )
    output = done.stdout.decode()
    assert (done.returncode != 0) == fails, output[-6000:]
    return output
