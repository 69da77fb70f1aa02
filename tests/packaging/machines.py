"""Machines to choose a runtime on: a folder for the kernel's files, a PATH, and a home."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, Sequence

from scripts.environment.container import TENSORFLOW, distributions
from scripts.environment.interpreters import find

TOOLS = ("sh", "dirname", "env", "awk", "sed", "make", "cat")
OLD = """case "$*" in
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
esac
"""


def smi(*lines: str, code: int = 0, before: str = "") -> str:
    """A program that answers every query with these lines."""
    text = "\n".join(lines)
    return f"#!/bin/sh\n{before}cat <<'E'\n{text}\nE\nexit {code}\n"


class Stand:
    """A machine under `folder`; `environment` starts a command on it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.home = folder / "root", folder / "bin", folder / "home"
        for made in (self.root, self.bin, self.home):
            made.mkdir(parents=True)
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None, name
            (self.bin / name).symlink_to(found)

    def python(self, *minors: str) -> None:
        """The Pythons that this machine has, under their own names."""
        for minor in minors:
            found = find([minor])
            assert found is not None
            (self.bin / f"python{minor}").symlink_to(os.path.realpath(found.path))

    def driver(self, answer: str) -> None:
        """A driver that is loaded, and what its nvidia-smi says."""
        version = self.root / "proc" / "driver" / "nvidia" / "version"
        version.parent.mkdir(parents=True)
        version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module\n")
        (self.root / "dev").mkdir()
        (self.root / "dev" / "nvidia0").write_text("")
        self.program("nvidia-smi", answer)

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def environment(self, **more: str) -> Dict[str, str]:
        return {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "AMP_XLA_DRIVER_ROOT": str(self.root),
            **more,
        }


def missing(minors: Sequence[str]) -> str:
    """The first of these Pythons that this machine lacks, or has with a TensorFlow of its own."""
    for minor in minors:
        found = find([minor])
        if found is None or set(TENSORFLOW) & set(distributions(found.path)):
            return minor
    return ""
