"""A run outlives whoever listened to it: what nobody takes goes to a file in its folder."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
import tempfile
from pathlib import Path
from typing import Any, List, Optional

FILE = "output.txt"


class Output:
    """Within ``with Output() as output``, a closed pipe or terminal does not end the process.

    The first write to standard output or error that fails leads that descriptor, and with it what
    C++ writes, into ``output.txt`` of the run folder; before there is one, into a file without a
    name, whose content comes first in ``output.txt``.
    """

    def __init__(self) -> None:
        self._folder: Optional[Path] = None
        self._waiting: Optional[Any] = None
        self._lost: List[int] = []

    def __enter__(self) -> Output:
        self._streams = sys.stdout, sys.stderr
        if sys.stdout is not None:
            sys.stdout = _Kept(sys.stdout, self)
        if sys.stderr is not None:
            sys.stderr = _Kept(sys.stderr, self)
        return self

    def __exit__(self, *_: Any) -> None:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        poll = select.poll()
        for descriptor in {1, 2}.difference(self._lost):
            poll.register(descriptor, 0)
        for descriptor, event in poll.poll(0):
            if event & select.POLLERR:  # the last words come after this
                with contextlib.suppress(OSError):
                    self.lost(descriptor, BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
        sys.stdout, sys.stderr = self._streams

    def keep_in(self, folder: Path) -> None:
        """Names the run folder."""
        self._folder = folder
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        with waiting, contextlib.suppress(OSError):
            target = self._target()
            waiting.seek(0)
            os.write(target, waiting.read())
            for descriptor in self._lost:
                os.dup2(target, descriptor)
            os.close(target)

    def lost(self, descriptor: int, error: OSError) -> None:
        """Called when a write to ``descriptor`` failed."""
        if descriptor in self._lost:
            raise error  # the file itself refuses
        target = self._target()
        self._lost.append(descriptor)
        os.dup2(target, descriptor)
        os.close(target)
        name = {1: "standard output", 2: "standard error"}.get(descriptor, "the output")
        os.write(descriptor, f"{name} takes no more ({error.strerror}); it goes on here\n".encode())

    def _target(self) -> int:
        if self._folder is None:
            if self._waiting is None:
                self._waiting = tempfile.TemporaryFile()  # noqa: SIM115  # open until named
            return os.dup(self._waiting.fileno())
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return os.open(str(self._folder / FILE), flags, 0o666)


class _Kept:
    """A text stream whose failed writes are made again, elsewhere."""

    def __init__(self, stream: Any, output: Output) -> None:
        self._stream, self._output = stream, output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, function: Any, *args: Any) -> None:
        try:
            function(*args)
        except OSError as error:
            # What could not be written is still in the stream's buffer, if it has one. Where there
            # is no place left to write to, a run that logs to its folder goes on without words.
            with contextlib.suppress(OSError, ValueError):
                self._output.lost(self._stream.fileno(), error)
                if not isinstance(self._stream.buffer, io.BufferedIOBase):  # PYTHONUNBUFFERED
                    function(*args)
                self._stream.flush()
