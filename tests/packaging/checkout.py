"""This repository as tests see it: its root, and commands run as a user's shell would run them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]
# Set by the `make test` that runs these tests; a user's `make` does not inherit them.
FROM_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "RUNTIME", "RECIPE", "ARGS")
FOR_DOCKER = ("BASE_IMAGE", "IMAGE", "GPUS", "DATA", "RUNS")


def shell_environment(**changes: str) -> Dict[str, str]:
    """The environment without what steers make or this project."""
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in FROM_MAKE + FOR_DOCKER and not name.startswith(("AMP_XLA_", "TF_"))
        },
        **changes,
    }


def run(command: List[str], root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run it in `root`; the result has stdout and stderr as text."""
    return subprocess.run(
        command,
        cwd=str(root),
        env=shell_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
