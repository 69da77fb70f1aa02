"""Which processes a test has started, straight from the kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import List


def children(pid: int) -> List[int]:
    """Processes whose parent is ``pid`` and that have not ended, oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def alive(pid: int) -> bool:
    """False for a process that has ended, also where nobody has taken note yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: List[int], seconds: float = 10.0) -> bool:
    """Waits until none of ``pids`` is alive."""
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def wait_for_children(pid: int, count: int, seconds: float = 60.0) -> List[int]:
    """Waits until ``pid`` has ``count`` children; returns them."""
    until = time.monotonic() + seconds
    before: List[int] = []
    while True:
        found = children(pid)
        # Twice the same ones: a shell that make asks something lives for a moment only.
        if len(found) >= count and found == before:
            return found
        assert time.monotonic() < until and os.path.exists(f"/proc/{pid}"), found
        before = found
        time.sleep(0.1)
