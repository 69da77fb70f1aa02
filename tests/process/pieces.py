"""Work for the tests of the worker pool; workers import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple


class Piece(NamedTuple):
    name: str
    value: int
    folder: str = ""


def square(piece: Piece) -> int:
    print("a print does no harm")
    return piece.value**2


def die_once(piece: Piece) -> int:
    mark = Path(piece.folder) / piece.name
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(piece)


def die(piece: Piece) -> Any:
    os._exit(9)


class Odd(Exception):
    """An exception that cannot be loaded again: it wants two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def fail(piece: Piece) -> Any:
    if piece.value:
        raise Odd("this", "that")
    raise KeyError(piece.name)


def sleep(piece: Piece) -> None:
    time.sleep(600)
