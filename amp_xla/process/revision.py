"""Git revision of the running source."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional


def revision() -> Optional[str]:
    """Return git's short hash, with ``+changes`` if files differ; None if it is unknown.

    A container image has no repository; there the variable ``SOURCE_REVISION`` is returned.
    """
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude", "*"]
    try:
        out = subprocess.run(
            [*command, "--dirty=+changes"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )
        return out.stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SOURCE_REVISION")
