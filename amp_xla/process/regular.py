"""Reading folders that may come from others: no links, regular files only, of bounded size.

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


def opened(path: Path, links: bool = False) -> BinaryIO:
    """Open a regular file to read its bytes.

    Args:
      path: the file; its folder is one that the user named, or passed ``not_linked``.
      links: whether a link to a regular file is allowed, as in Hugging Face's cache.

    Raises:
      OSError: it is missing, a link, or not a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(str(path if links else not_linked(path)), flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read(path: Path, links: bool = False, most: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; see ``opened``."""
    with opened(path, links) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return data


def lines(path: Path, most: float = math.inf) -> Iterator[bytes]:
    """Yield the lines in the first ``most`` bytes of a file; end at a line of over 1 MiB."""
    with opened(path) as file:
        for line in iter(lambda: file.readline(_LONGEST), b""):
            if len(line) == _LONGEST or file.tell() > most:
                return
            yield line


def not_linked(path: Path) -> Path:
    """Return the path of a file or folder; raise OSError if it is a link."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a link, which may lead out of its folder", str(path))
    return path
