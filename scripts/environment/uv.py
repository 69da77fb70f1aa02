"""Find uv, or install a pinned version of it into .venvs/tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Optional, Tuple

from scripts.environment import SetupError, say

PINNED = "0.13.8"
MINIMUM = (0, 5, 0)


def uv(root: Path) -> str:
    """Return the path of a usable uv; install one into .venvs/tools if there is none.

    Raises:
      SetupError: uv is missing, and this Python cannot install it.
    """
    tools = root / ".venvs" / "tools"
    home = os.path.expanduser("~")  # unlike Path.home(), no error for an unlisted user id
    places = [shutil.which("uv"), f"{home}/.local/bin/uv", f"{home}/.cargo/bin/uv"]
    for path in (*filter(None, places), str(tools / "bin" / "uv")):
        if (_version(path) or (0,)) >= MINIMUM:
            return path
    say(f"installing uv {PINNED} into .venvs/tools (no uv >= {'.'.join(map(str, MINIMUM))} found)")
    return _install(tools)


def _version(path: str) -> Optional[Tuple[int, ...]]:
    try:
        done = subprocess.run(
            [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    match = re.match(r"uv (\d+)\.(\d+)\.(\d+)", done.stdout.decode())
    return tuple(int(part) for part in match.groups()) if match else None


def _install(tools: Path) -> str:
    """Install uv in a venv, or if that fails (no ensurepip), by pip --target."""
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    program, requirement = str(tools / "bin" / "uv"), f"uv=={PINNED}"
    venv = [sys.executable, "-m", "venv", str(tools)]
    ways = (
        [venv, [str(tools / "bin" / "python"), *pip, requirement]],
        [[sys.executable, *pip, "--target", str(tools), requirement]],
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PIP_TARGET", "PIP_USER")}
    failures = ""
    for commands in ways:
        shutil.rmtree(tools, ignore_errors=True)
        for command in commands:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
            )
            if done.returncode:
                text = done.stdout.decode(errors="replace").strip()
                failures += f"  $ {' '.join(command)}\n{text[-400:]}\n"
                break
        if _version(program):
            return program
    shutil.rmtree(tools, ignore_errors=True)
    raise SetupError(
        f"uv {PINNED} could not be installed with {sys.executable}:\n{failures}"
        "If `venv` or `ensurepip` is missing: `sudo apt-get install python3-venv`, then repeat"
        " the command. Otherwise install uv yourself:"
        " https://docs.astral.sh/uv/getting-started/installation/"
    )
