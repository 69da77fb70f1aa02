"""Get uv: the machine's own where it is new enough, else a pinned one of this project's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from scripts.environment.errors import SetupError

PINNED = "0.13.8"
MINIMUM = (0, 5, 0)


def uv(root: Path) -> str:
    """Path of a usable uv; installs one into .venvs/tools if there is none.

    Raises:
      SetupError: there is none, and this Python can't install it.
    """
    tools = root / ".venvs" / "tools"
    for path in _candidates(tools):
        version = _version(path)
        if version is not None and version >= MINIMUM:
            return path
    say(f"installing uv {PINNED} into .venvs/tools (no uv >= {'.'.join(map(str, MINIMUM))} found)")
    return _install(tools)


def say(text: str) -> None:
    """Tell the user; stdout is kept for answers that the Makefile reads."""
    print(text, file=sys.stderr, flush=True)


def _candidates(tools: Path) -> Iterator[str]:
    # Unlike Path.home(), no error for a user id without an entry (docker --user): "~" stays "~".
    home = Path(os.path.expanduser("~"))
    found = shutil.which("uv")
    if found:
        yield found
    yield str(home / ".local" / "bin" / "uv")
    yield str(home / ".cargo" / "bin" / "uv")
    yield str(tools / "bin" / "uv")


def _version(path: str) -> Optional[Tuple[int, ...]]:
    try:
        answer = subprocess.run(
            [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        ).stdout.decode()
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", answer)
    return tuple(int(part) for part in found.groups()) if found else None


def _install(tools: Path) -> str:
    """Two ways, because Debian's Python has no ensurepip and some images have no pip."""
    requirement = f"uv=={PINNED}"
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    shutil.rmtree(tools, ignore_errors=True)
    failures = []
    for commands in (
        [
            [sys.executable, "-m", "venv", str(tools)],
            [str(tools / "bin" / "python"), *pip, requirement],
        ],
        [[sys.executable, *pip, "--target", str(tools), requirement]],
    ):
        for command in commands:
            failure = _run(command)
            if failure:
                failures.append(failure)
                break
        else:
            path = str(tools / "bin" / "uv")
            if _version(path):
                return path
            failures.append(f"{path} does not run")
        shutil.rmtree(tools, ignore_errors=True)
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    raise SetupError(
        f"uv {PINNED} could not be installed with {sys.executable}:\n"
        + "\n".join(failures)
        + "\nIf `venv` or `ensurepip` is what it misses: `sudo apt-get install python3-venv` (or"
        f" {package}), then the same command again. Otherwise install uv yourself:"
        " https://docs.astral.sh/uv/getting-started/installation/"
    )


def _run(command: List[str]) -> str:
    """'' or the last lines of what went wrong."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PIP_TARGET", "PIP_USER")}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        return f"  {command[0]}: {error}"
    if done.returncode == 0:
        return ""
    tail = done.stdout.decode(errors="replace").strip().split("\n")[-4:]
    return "\n".join([f"  $ {' '.join(command)}", *(f"    {line}" for line in tail)])
