"""Horovod for the tests that start ranks. `.ci/run` builds it before, which takes minutes."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from amp_xla import backend
from tests.support.running import run_python


def need_horovod():
    """Skip the test if Horovod is missing; in CI that is a failure."""
    if importlib.util.find_spec("horovod") is None:
        missing = f"Horovod is not built; next: scripts/build_horovod.sh {backend.kind()}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)


def on_two_ranks(module, folder, *words, **env):
    """Run a module with FOLDER and ``words`` on two ranks over Gloo; return its output."""
    need_horovod()
    runner = str(Path(sys.executable).parent / "horovodrun")
    start = (runner, "--gloo", "-np", "2", "-H", "localhost:2", sys.executable, "-m", module)
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", **env}
    done = run_python(*start, str(folder), *words, env=env, timeout=280)
    return done.out + done.err
