"""Which source is running: git's revision, or what an image was built from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional


def revision(folder: Path = Path(__file__).parent) -> Optional[str]:
    """Git's short hash of the code in ``folder``, ``+changes`` behind it where some is not in it.

    An image has no repository, but says in ``SOURCE_REVISION`` what it was built from. None where
    nobody knows.
    """
    try:
        out = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--exclude", "*",
             "--dirty=+changes"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )  # fmt: skip
        return out.stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SOURCE_REVISION")
