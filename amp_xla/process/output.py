"""Text for the terminal and for programs that read standard output."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import unicodedata
from typing import Any, Iterable, Iterator, List

from amp_xla.errors import AmpXlaError

# Characters that ``lines`` escapes: controls except tabs, halves of surrogate pairs, and those that
# change the direction of text. Joiners of emoji and of Persian are printed unchanged.
_CONTROLS = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: Any, allowed: str = "") -> str:
    r"""Return text with unprintable characters escaped, as ``\x1b``, except those in ``allowed``.

    Text from files could otherwise send commands to the terminal, or start a new line.
    """
    return "".join(
        c
        if c.isprintable() or c in allowed or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def message(text: str, allowed: str = "") -> str:
    """Return a message as ``printable`` text; very long lines lose their middle."""
    return printable(re.sub("(.{1000}).{500,}(.{500})", r"\1 ... \2", text), allowed)


def check_name(name: str) -> None:
    """Raise AmpXlaError if a name is not UTF-8: it could not be written into the run's files."""
    plain = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if plain != name:
        raise AmpXlaError(f"{plain}: the name is not UTF-8; rename it")


def lines(texts: Iterable[str]) -> None:
    """Print texts for other programs: one per line, always UTF-8, controls except tabs escaped.

    Raises:
      AmpXlaError: standard output cannot be written, e.g. to a full disk.
      BrokenPipeError: the reading program has ended.
    """
    reconfigure(encoding="utf-8")
    with _writing():
        for text in texts:
            print(_CONTROLS.sub(lambda match: printable(match.group()), text))
        sys.stdout.flush()


def flush() -> None:
    """Flush standard output; raise the same errors as ``lines``."""
    with _writing():
        sys.stdout.flush()


def require() -> None:
    """Raise AmpXlaError if standard output is closed; call this before computing answers."""
    if "stdout" in CLOSED:
        raise AmpXlaError("standard output is closed, so the answers cannot be printed")


@contextlib.contextmanager
def messages() -> Iterator[None]:
    """Run a block that prints to standard error; ignore errors, e.g. of a closed terminal."""
    try:
        yield
    except BrokenPipeError:
        discard(2)
    except OSError:
        pass


def discard(stream: int = 1) -> None:
    """Discard what a standard stream still buffers, so that Python's exit does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def _open_closed() -> List[str]:
    """Replace each closed standard stream by /dev/null; return the names of these streams.

    Otherwise the next opened file gets descriptor 0, 1 or 2, and C libraries print into this file.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    return closed


CLOSED = _open_closed()


def reconfigure(**settings: str) -> None:
    """Change encoding or errors of standard output."""
    if hasattr(sys.stdout, "reconfigure"):  # a notebook's stream has no such method
        sys.stdout.reconfigure(**settings)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise AmpXlaError(f"cannot write to standard output: {error.strerror}") from error
