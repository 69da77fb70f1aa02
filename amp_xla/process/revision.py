"""Git revision of the running source."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional


def revision() -> Optional[str]:
    """Return git's short hash, with ``+changes`` if files differ; None if it is unknown.

    A container image has no repository; there the variable ``SOURCE_REVISION`` is returned. Pages
    of results do not count: each command that measures changes one.
    """
    files = ["--untracked-files=no", "--", ":/", ":(top,exclude)docs/results"]
    try:
        changed = _git("status", "--porcelain", *files)
        return _git("describe", "--always", "--exclude", "*") + "+changes" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SOURCE_REVISION")


def _git(*words: str) -> str:
    out = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=10,
        check=True,
    )
    return out.stdout.decode().strip()
