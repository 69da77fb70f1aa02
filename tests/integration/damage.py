"""Damage to one file of a run, as disks, people and copying do it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

KINDS = ("cut", "flip", "delete", "swap", "folder", "link")


def damage(path: Path, other: Path, chance: random.Random) -> str:
    """Damages one file; returns how."""
    kind = chance.choice(KINDS)
    data = path.read_bytes()
    if kind == "swap" and not other.is_file():
        kind = "delete"
    if kind == "cut":
        path.write_bytes(data[: chance.randrange(max(len(data), 1))])
    elif kind == "flip" and data:
        at = chance.randrange(len(data))
        flipped = bytes([data[at] ^ (1 << chance.randrange(8))])
        path.write_bytes(data[:at] + flipped + data[at + 1 :])
    elif kind == "swap":
        shutil.copyfile(str(other), str(path))
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            target = chance.choice([str(other), "/nowhere", path.name, "/etc/hostname"])
            path.symlink_to(target)
    return kind
