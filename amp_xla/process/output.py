"""What a process prints: nothing is lost silently, whoever reads it, however full the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any, Iterable, Iterator, Optional

from amp_xla.errors import AmpXlaError

CLOSED = 141  # 128 + SIGPIPE: what shells report of a program whose reader went away
# The machine's or the user's to mend, wherever in the program they turn up; others are our faults.
_REFUSALS = frozenset(
    [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO]
    + [errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE]
)


def tolerate() -> None:
    """Characters that standard output's encoding lacks are printed as ``\\u4e2d``, not refused."""
    _reconfigure(sys.stdout, errors="backslashreplace")
    if sys.stderr is None:  # closed; print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def lines(texts: Iterable[str]) -> None:
    """Prints answers that programs read: in UTF-8, as all files here are, whatever the locale.

    Raises:
      AmpXlaError: standard output is closed, or cannot be written, e.g. a full disk.
      BrokenPipeError: the reader went away.
    """
    if sys.stdout is None:
        raise AmpXlaError("standard output is closed; there is nowhere to print the answers")
    _reconfigure(sys.stdout, encoding="utf-8")
    with _writing():
        for text in texts:
            print(text)
        sys.stdout.flush()


def finished() -> None:
    """Hands what was printed to its reader; raises as ``lines``."""
    if sys.stdout is not None:
        with _writing():
            sys.stdout.flush()


def closed() -> int:
    """Says that the reader of standard output went away; returns the exit code for it."""
    _drop()
    print("standard output was closed before everything was printed", file=sys.stderr)
    return CLOSED


def refusal(error: OSError) -> Optional[str]:
    """One line for what the system refused; None where it is not for the user to mend."""
    if error.errno not in _REFUSALS:
        return None
    where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
    return f"{where}{error.strerror}"


def _reconfigure(stream: Any, **settings: str) -> None:
    if hasattr(stream, "reconfigure"):  # None where it is closed; tests put others in its place
        stream.reconfigure(**settings)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop()
        raise AmpXlaError(f"cannot write to standard output: {error.strerror}") from error


def _drop() -> None:
    """What is still buffered goes nowhere, so that Python does not complain when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
