"""Run commands as a user's shell would: TensorFlow's switches are read once by each process."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("[!_]*.py"))
_OURS = ("AMP_XLA_", "TF_", "NVIDIA_TF32")
# Set by the `make test` that runs these tests; a user's `make` does not inherit them.
_FROM_MAKE = (
    *("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "RUNTIME", "RECIPE", "ARGS", "NP"),
    *("BASE_IMAGE", "IMAGE", "GPUS", "DATA", "RUNS", "ENGINE", "PYTHONPATH"),
)


class Result(NamedTuple):
    """What a command left: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error(self):
        """The one line that says what is wrong; there is no traceback and no second one."""
        assert self.code == 2 and "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0], self.err
        return lines[0]


def until(true, seconds=120):
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def shell_environment(**changes):
    """Return the environment without the variables of make and of this project."""
    return {
        **{k: v for k, v in os.environ.items() if k not in _FROM_MAKE and not k.startswith(_OURS)},
        **changes,
    }


def environment(env=None):
    """Return the same, with this checkout on Python's path, and ``env``."""
    return {**shell_environment(PYTHONPATH=str(ROOT)), **(env or {})}


def run(command, root=ROOT, **changes):
    """Run a command in ``root``; the result has stdout and stderr as text."""
    return subprocess.run(
        command, cwd=str(root), env=shell_environment(**changes), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def start_python(*arguments, cwd=ROOT, **env):
    """Start this Python with pipes."""
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=str(cwd), env=environment(env), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run_python(*arguments, env=None, stdin="", timeout=240, cwd=ROOT, code=0):
    """Run this Python with ``arguments``; it must end with ``code``, None = any."""
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin.encode(), capture_output=True,
        env=environment(env), timeout=timeout, cwd=str(cwd),
    )  # fmt: skip
    assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
