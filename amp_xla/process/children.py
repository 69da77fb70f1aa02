"""Child processes that never outlive their parent, however it ends.

``python -m amp_xla.process.children PARENT MODULE WORDS...`` runs ``MODULE``, as ``-m`` would.
The kernel kills it when its parent, the process ``PARENT``, is gone, also by SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Dict, List, Mapping

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def command(module: str, *words: str) -> List[str]:
    """The command line of a child that runs ``module``; start it from a thread that outlives it."""
    return [sys.executable, "-m", "amp_xla.process.children", str(os.getpid()), module, *words]


def environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """``environ`` with this package importable, wherever the parent found it."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def die_with(parent: int) -> None:
    """Has the kernel kill this process when ``parent`` ends; ends it now if that is the case."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
