"""Both bert4keras versions, whichever one this environment has: the other goes into .cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.environment.uv import uv

ROOT = Path(__file__).resolve().parents[2]


def folder(version: str) -> Path:
    """A folder to put first on the path, after which ``import bert4keras`` is ``version``."""
    path = ROOT / ".cache" / f"bert4keras-{version}-py{sys.version_info[0]}.{sys.version_info[1]}"
    if not path.exists():
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        command = [uv(ROOT), "pip", "install", "--quiet", "--no-deps", "--target", str(temporary)]
        command += ["--python", sys.executable, f"bert4keras=={version}"]
        subprocess.run(command, check=True)
        try:
            temporary.rename(path)
        except OSError:  # another test process was first
            if not path.exists():
                raise
    return path
