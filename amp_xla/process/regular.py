"""Opens and reads files in untrusted folders: regular files only, and no links unless allowed.

A link could lead to any of the user's files, and a pipe or a device would never end.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from pathlib import Path
from typing import BinaryIO, Iterator

LARGEST = 16 << 20  # bytes of a file that is read whole, such as JSON or a vocabulary
_LONGEST = 1 << 20
# Errors of ``os.open`` for a folder, a link, a socket, a missing device
_OTHER_KINDS = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV)


class NotAFile(OSError):
    """The path is a link, folder, pipe or device, not a regular file; or the file is too large.

    Any other ``OSError``, such as EACCES or EIO, does not show that the file is damaged.
    """


def descriptor(path: str, flags: int, links: bool = False) -> int:
    """Open a regular file and return its descriptor; an ``opener`` for Python's ``open``.

    Args:
      path: the file, in a folder that the user named or that ``not_linked`` has checked.
      flags: as for ``os.open``. A file to write must not have another hard link.
      links: whether a link to a regular file is allowed, as in Hugging Face's cache.

    Raises:
      NotAFile: it is not a regular file, or it is a link or hard link that is not allowed.
      OSError: it cannot be opened.
    """
    try:
        opened = os.open(
            path if links else str(not_linked(Path(path))),
            flags | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW), 0o666,
        )  # fmt: skip
    except OSError as error:
        if error.errno in _OTHER_KINDS and not isinstance(error, NotAFile):
            raise NotAFile(errno.EISDIR, "not a regular file", path) from None
        raise
    status = os.fstat(opened)
    problem = "" if stat.S_ISREG(status.st_mode) else "not a regular file"
    if not problem and flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
        problem = "has another name (a hard link), whose content would change: delete it"
    if problem:
        os.close(opened)
        raise NotAFile(errno.EISDIR, problem, path)
    return opened


def opened(path: Path, links: bool = False) -> BinaryIO:
    """Open a regular file to read its bytes; see ``descriptor``."""
    return os.fdopen(descriptor(str(path), os.O_RDONLY, links), "rb")


def read(path: Path, links: bool = False, most: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; see ``descriptor``."""
    with opened(path, links) as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            error.filename = str(path)  # the system's error has none
            raise
    if len(data) > most:
        raise NotAFile(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return data


def lines(path: Path, most: float = math.inf) -> Iterator[bytes]:
    """Yield the lines in the first ``most`` bytes of a file; end at a line of 1 MiB or more."""
    with opened(path) as file:
        for line in iter(lambda: file.readline(_LONGEST), b""):
            if len(line) == _LONGEST or file.tell() > most:
                return
            yield line


def refuse_unwritable(folder: Path) -> None:
    """Raise OSError if a folder, or the nearest parent that exists, cannot be written."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(str(path)))
    if not there.is_dir() or not os.access(str(there), os.W_OK | os.X_OK):
        code = errno.EACCES if there.is_dir() else errno.ENOTDIR
        if there.is_dir() and os.statvfs(str(there)).f_flag & os.ST_RDONLY:
            code = errno.EROFS
        raise OSError(code, os.strerror(code), str(there))


def not_linked(path: Path) -> Path:
    """Return the path of a file or folder; raise ``NotAFile`` if it is a link."""
    if path.is_symlink():
        raise NotAFile(errno.ELOOP, "is a link, which may lead out of its folder", str(path))
    return path
