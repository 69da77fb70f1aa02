"""Find the Pythons of this machine by asking them, not by trusting their names.

A name on PATH may be a pyenv shim that answers "command not found", a file that needs another
machine's libraries, or another Python than it says: a candidate counts once it has run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Sequence, Tuple

# Imports nothing and runs without site-packages: every command waits for it.
PROBE = (
    "import sys; print('%d %d %d' % sys.version_info[:3]); print(sys.executable);"
    " print(sys.implementation.name, sys.maxsize > 2**32)"
)
PROBE_SECONDS = 10


class Interpreter(NamedTuple):
    """A Python that answered: its executable and its (major, minor, micro)."""

    path: str
    version: Tuple[int, int, int]

    @property
    def minor(self) -> str:
        """'3.7' of 3.7.16."""
        return f"{self.version[0]}.{self.version[1]}"

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


@lru_cache(maxsize=None)  # `python3` is a candidate for every minor version
def probe(path: str) -> Optional[Interpreter]:
    """Run `path`; None unless it is a working 64-bit CPython."""
    try:
        answer = subprocess.run(
            [path, "-I", "-S", "-c", PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=True,
        ).stdout
        version, executable, kind = answer.decode().split("\n")[:3]
        major, minor, micro = map(int, version.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if kind != "cpython True":
        return None
    return Interpreter(executable or path, (major, minor, micro))


def candidates(minor: str) -> Iterator[str]:
    """Paths where a Python of this minor version ('3.7') may lie, likeliest first.

    Version managers' own folders come before PATH: their shims are slow, and those that are not
    switched on fail although the Python is there.
    """
    home = Path(os.path.expanduser("~"))  # no error for a user id without an entry, as Path.home()

    def env(name: str, default: Path) -> Path:
        return Path(os.environ.get(name) or default)

    pyenv = env("PYENV_ROOT", home / ".pyenv")
    data = env("XDG_DATA_HOME", home / ".local" / "share")
    folders = [
        (pyenv / "versions", f"{minor}.*"),
        (env("UV_PYTHON_INSTALL_DIR", data / "uv" / "python"), f"cpython-{minor}.*"),
        (home / ".asdf" / "installs" / "python", f"{minor}.*"),
        (data / "mise" / "installs" / "python", f"{minor}.*"),
    ]
    for folder, pattern in folders:
        for match in sorted(folder.glob(pattern), key=_newest_first):
            yield str(match / "bin" / "python")
    try:
        # Conda keeps a list of every environment it made, wherever it lies.
        conda = (home / ".conda" / "environments.txt").read_text().split("\n")
    except OSError:
        conda = []
    for prefix in conda:
        if prefix.strip():
            yield str(Path(prefix.strip()) / "bin" / f"python{minor}")
    for name in (f"python{minor}", "python3", "python"):
        found = shutil.which(name)
        if found:
            yield found


def _newest_first(path: Path) -> Tuple[int, ...]:
    digits = path.name.replace("cpython-", "").split("-")[0].split(".")
    return tuple(-int(part) if part.isdigit() else 0 for part in digits)


def find(minors: Sequence[str]) -> Optional[Interpreter]:
    """The first working Python whose minor version is one of `minors`, in their order."""
    for minor in minors:
        for path in candidates(minor):
            interpreter = probe(path) if os.access(path, os.X_OK) else None
            if interpreter and interpreter.minor == minor:
                return interpreter
    return None
