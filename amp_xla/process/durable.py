"""File operations that survive a kill or a power cut: whole after it, or as if never begun.

Every write goes through ``os`` as this module names it, one call an operation, so that a test
can stop the process before and after each of them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

TEMPORARY = ".tmp-"


def sync_file(path: Path) -> None:
    """Returns when the content of a file is on the disk."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on the disk; without this a rename may be lost."""
    descriptor = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes) -> None:
    """Creates ``path`` with ``data`` and waits for the disk. The name itself is not yet durable.

    A link in its place is replaced, not followed: nothing is written elsewhere.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(str(path), flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        os.unlink(str(path))
        descriptor = os.open(str(path), flags | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)  # the system knows a number only
        raise
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> None:
    """Puts ``data`` under ``path``: at any moment a reader finds the old or the new content."""
    temporary = path.parent / f"{TEMPORARY}{path.name}"
    write(temporary, data)
    _swap(temporary, path)


def adopt(temporary: Path, path: Path) -> None:
    """Puts a file that somebody else wrote in the same folder under ``path``, as ``replace``."""
    sync_file(temporary)
    _swap(temporary, path)


def _swap(temporary: Path, path: Path) -> None:
    os.replace(str(temporary), str(path))
    sync_folder(path.parent)


def publish(folder: Path, target: Path) -> None:
    """Gives a finished folder its name; ``target`` must not exist."""
    sync_folder(folder)
    os.rename(str(folder), str(target))
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Deletes a folder; under its own name it is there as a whole, or not at all.

    What a link points to stays, and so does what stands behind links inside.
    """
    doomed = path
    if not path.name.startswith(TEMPORARY):
        doomed = path.parent / f"{TEMPORARY}{path.name}.deleted"
        if os.path.lexists(str(doomed)):
            remove(doomed)
        os.rename(str(path), str(doomed))
    if doomed.is_symlink() or not doomed.is_dir():
        os.unlink(str(doomed))
    else:
        _remove(doomed)


def _remove(folder: Path) -> None:
    for name in os.listdir(str(folder)):
        inside = folder / name
        if inside.is_dir() and not inside.is_symlink():
            _remove(inside)
        else:
            os.unlink(str(inside))
    os.rmdir(str(folder))
