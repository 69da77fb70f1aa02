"""Processes that a test has started, from the kernel's files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import List


def children(pid: int) -> List[int]:
    """Processes whose parent is ``pid`` and that have not ended, oldest first."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(parent) == pid and state != "Z":
            pids.append(int(path.parent.name))
    return sorted(pids)


def alive(pid: int) -> bool:
    """Return False for a process that has ended, also if its parent has not waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: List[int], seconds: float = 10.0) -> bool:
    """Wait until none of ``pids`` is alive."""
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def wait_for_children(pid: int, count: int, seconds: float = 60.0) -> List[int]:
    """Wait until ``pid`` has ``count`` children; return them."""
    until = time.monotonic() + seconds
    last_pids: List[int] = []
    while True:
        pids = children(pid)
        # Twice the same ones: a shell that make asks something lives for a moment only.
        if len(pids) >= count and pids == last_pids:
            return pids
        assert time.monotonic() < until and os.path.exists(f"/proc/{pid}"), pids
        last_pids = pids
        time.sleep(0.1)
