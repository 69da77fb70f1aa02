"""Runs a script in a fresh Python, as a user would: TensorFlow's switches are read once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[1]
_OURS = ("AMP_XLA_", "TF_", "NVIDIA_TF32")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def environment(env: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """This process' environment without our variables, plus ``env``."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    clean["PYTHONPATH"] = str(ROOT)
    clean.update(env or {})
    return clean


def run_python(
    *arguments: str,
    env: Optional[Mapping[str, str]] = None,
    stdin: str = "",
    timeout: float = 240,
    cwd: Path = ROOT,
) -> Result:
    """Runs this Python with ``arguments`` in an environment without our variables."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin.encode(),
        capture_output=True,
        env=environment(env),
        timeout=timeout,
        cwd=str(cwd),
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
