"""File operations that survive a kill or a power cut: complete, or as if never started.

They change files through this module's ``os``, so that a test can stop the process before and after
each call of ``os``. The only exception: ``remove`` calls ``shutil.rmtree``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO, Union

TEMPORARY = ".tmp-"


def sha256(file: Union[Path, BinaryIO]) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; ``file``: a path or an open file."""
    if isinstance(file, Path):
        with open(str(file), "rb") as opened:
            return sha256(opened)
    digest = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk.

    After a rename, the folder must be synced: a sync of the file may not save its new name.
    """
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def own(path: Path) -> None:
    """Set a file's mode to what the umask allows; wait until the file is on the disk.

    Needed because safetensors writes files that only their owner can read.
    """
    mask = os.umask(0o077)  # there is no other way to read it
    os.umask(mask)
    os.chmod(str(path), 0o666 & ~mask)
    sync(path)


def write(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data`` and wait until the content is on the disk.

    Until ``sync`` of the folder, a power cut may still lose the file's name. A link or a pipe at
    ``path`` is replaced, not followed.
    """
    if os.path.lexists(str(path)):
        os.unlink(str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(str(path), flags, 0o666)
    try:
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)  # the system's error has none
        raise
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes, writer: str = "") -> None:
    """Write ``data`` to ``path``; readers see the old or the new content at any time.

    If processes write the same file at the same time, each must give another ``writer``, which
    becomes a part of the temporary file's name.
    """
    temporary = path.parent / f"{TEMPORARY}{path.name}{writer}"
    try:
        write(temporary, data)
        _swap(temporary, path)
    except OSError as error:
        error.filename = str(path)
        with contextlib.suppress(OSError):
            os.unlink(str(temporary))  # it would keep a full disk full
        raise


def adopt(temporary: Path, path: Path) -> None:
    """Rename ``temporary``, a file that a library wrote into the same folder, to ``path``."""
    own(temporary)
    _swap(temporary, path)


def _swap(temporary: Path, path: Path) -> None:
    os.replace(str(temporary), str(path))
    sync(path.parent)


def publish(folder: Path, target: Path) -> None:
    """Rename a finished folder to ``target``, which must not exist."""
    sync(folder)
    os.rename(str(folder), str(target))
    sync(target.parent)


def remove(path: Path) -> None:
    """Rename a folder, then delete it, so that a kill never leaves half of it under its name.

    Symbolic links are deleted, not followed.
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
        shutil.rmtree(str(doomed))  # does not follow links either
