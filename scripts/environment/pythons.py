"""Find the Python interpreters of this machine.

A name on PATH may be another version, or a shim of pyenv that fails. Therefore each candidate is
run before it is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Sequence, Tuple

# Imports only sys, so that it is quick: each command waits for it.
PROBE = (
    "import sys; print('%d %d %d' % sys.version_info[:3]); print(sys.executable);"
    " print(sys.implementation.name, sys.maxsize > 2**32)"
)
PROBE_SECONDS = 10
# Folders of version managers; MINOR is e.g. 3.12. They come before PATH, whose shims are slow.
MANAGED = (
    ("PYENV_ROOT", "~/.pyenv", "versions/MINOR.*"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-MINOR.*"),
    ("ASDF_DATA_DIR", "~/.asdf", "installs/python/MINOR.*"),
    ("MISE_DATA_DIR", "~/.local/share/mise", "installs/python/MINOR.*"),
)


class Interpreter(NamedTuple):
    """A working Python: its executable and its (major, minor, micro) version."""

    path: str
    version: Tuple[int, int, int]

    @property
    def minor(self) -> str:
        """The major and minor version: '3.7' for 3.7.16."""
        return f"{self.version[0]}.{self.version[1]}"

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


@lru_cache(maxsize=None)  # `python3` is a candidate for each minor version
def probe(path: str) -> Optional[Interpreter]:
    """Run `path`; return None unless it is a working 64-bit CPython."""
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


def find(minors: Sequence[str]) -> Optional[Interpreter]:
    """Return the first working Python with one of the versions `minors`, tried in their order."""
    for minor in minors:
        for path in candidates(minor):
            interpreter = probe(path) if os.access(path, os.X_OK) else None
            if interpreter and interpreter.minor == minor:
                return interpreter
    return None


def candidates(minor: str) -> Iterator[str]:
    """Yield paths that may be a Python of this minor version ('3.7'), the likeliest first."""
    for variable, default, pattern in MANAGED:
        folder = Path(os.path.expanduser(os.environ.get(variable) or default))
        for match in sorted(folder.glob(pattern.replace("MINOR", minor)), key=_newest_first):
            yield str(match / "bin" / "python")
    try:
        conda = Path(os.path.expanduser("~/.conda/environments.txt")).read_text().split("\n")
    except OSError:
        conda = []
    for prefix in filter(str.strip, conda):
        yield str(Path(prefix.strip()) / "bin" / f"python{minor}")
    for name in (f"python{minor}", "python3", "python"):
        path = shutil.which(name)
        if path:
            yield path


def _newest_first(path: Path) -> Tuple[int, ...]:
    digits = path.name.replace("cpython-", "").split("-")[0].split(".")
    return tuple(-int(part) if part.isdigit() else 0 for part in digits)
