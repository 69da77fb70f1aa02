"""Signals: the first one stops the run after a checkpoint, the second one ends the process."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

# Slurm can send SIGUSR1 some time before it ends a job; stopping by it is not a failure.
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGUSR1": 0}
_NAMES = {getattr(signal, name): name for name in EXIT_CODES}
# A launcher may forward a signal that the whole process group has received already.
SAME_SIGNAL_SECONDS = 0.5
# Time to clean up before the process is ended: a library call may run no Python for minutes.
_GRACE_SECONDS = 5.0


class Stopped(KeyboardInterrupt):
    """A signal stopped the run. Not an ``Exception``, so ``except Exception`` does not catch it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(SystemExit, KeyboardInterrupt):
    """A KeyboardInterrupt after SIGINT in a script; if it is not caught, it sets the exit code."""


def interactive() -> bool:
    """Return whether the process is a notebook's kernel, IPython or Python's prompt."""
    return hasattr(sys, "ps1")


def ending(error: Any) -> BaseException:
    """Return the exception that ends the user's program after ``Stopped`` or ``RankLost``.

    A notebook shows the message. A script ends with the exit code, without a traceback. After
    Ctrl-C, the exception is also a KeyboardInterrupt, so that ``except KeyboardInterrupt`` around
    ``fit`` works.
    """
    if interactive():
        return KeyboardInterrupt(str(error))
    by_hand = error.exit_code == EXIT_CODES["SIGINT"]
    return (Interrupted if by_hand else SystemExit)(error.exit_code)


class SignalWatch:
    """Context in which the first signal stops the work after a checkpoint.

    SIGTERM, SIGINT, SIGHUP and SIGUSR1 set ``received``; the training loop reads it between steps.
    Inside ``nothing_to_save`` these signals end the process, unless it is a notebook's. A second
    signal ends it anywhere, even while the main thread compiles a graph. SIGINT never ends a
    notebook's process. Under ``nohup``, SIGHUP stays ignored.

    Attributes:
      received: name of the first signal.
      save: called in a thread at the first signal; None = the loop saves.
    """

    def __init__(self) -> None:
        self.received: Optional[str] = None
        self.save: Optional[Callable[[], None]] = None
        self._nothing_to_save: List[Tuple[str, bool]] = []  # (when, at_once)
        self._ending = False
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> SignalWatch:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may set handlers
        for number in _NAMES:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._undo.callback(signal.signal, number, signal.signal(number, self._receive))
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        self._undo.callback(os.close, write_end)  # ends the thread
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write_end))
        threading.Thread(target=self._watch, args=(read_end,), daemon=True, name="signals").start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._undo.close()

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        if self.received is not None:
            return
        self.received, self._ending = _NAMES[number], self._may_end()
        if self._ending and self._nothing_to_save[-1][1]:
            stopped = self.stopped(self._nothing_to_save[-1][0])
            # An exception that passes through a library's C++ may crash the process.
            if any(library in sys.modules for library in ("tensorflow", "jax")):
                _end(stopped.exit_code, f"{stopped}\n")
            raise stopped

    @contextlib.contextmanager
    def nothing_to_save(self, when: str, at_once: bool = True) -> Iterator[None]:
        """End the process at a signal, even if the code inside swallows exceptions.

        Args:
          when: last words of the message, e.g. ``before the first step``.
          at_once: False = first wait some seconds for the code inside to end. In a notebook the
            code always ends first, then ``Stopped`` is raised.
        """
        self.check(when)
        self._nothing_to_save.append((when, at_once))
        try:
            yield
        finally:
            self._nothing_to_save.pop()
            if not isinstance(sys.exc_info()[1], Stopped):
                self.check(when)

    def check(self, when: str) -> None:
        """Raise ``Stopped`` if a signal was received."""
        if self.received:
            raise self.stopped(when)

    def stopped(self, when: str) -> Stopped:
        """Return the exception for the received signal."""
        code = EXIT_CODES.get(self.received or "", 0)
        return Stopped(f"stopped by {self.received} {when}".rstrip(), code)

    def _watch(self, read_end: int) -> None:
        """Read signal numbers, which Python writes to the pipe, and end the process if needed."""
        first, began = "", 0.0
        while True:
            left = None
            if first and self._may_end():
                left = max(0.0, began + _GRACE_SECONDS - time.monotonic())
            if not select.select([read_end], [], [], left)[0]:
                if self._may_end():
                    _end(EXIT_CODES[first], f"{first}: ended; there was nothing to save\n")
                continue
            data = os.read(read_end, 1)
            if not data:
                os.close(read_end)
                return
            name = _NAMES.get(data[0])
            if name is None:  # a signal that the script handles
                continue
            stays = name == "SIGINT" and interactive()
            if first and time.monotonic() - began > SAME_SIGNAL_SECONDS and not stays:
                _end(128 + data[0], "second signal: ended at once; the last checkpoint is whole\n")
            if not first:
                first, began = name, time.monotonic()
                if not self._may_end():
                    second = "" if stays else "; a second signal ends the process at once"
                    _say(f"{first}: finishing the step and writing a checkpoint{second}\n")
                if self.save is not None:
                    self.save()

    def _may_end(self) -> bool:
        return (self._ending or bool(self._nothing_to_save)) and not interactive()


def _forget_in_child() -> None:
    """Restore the usual handlers in a forked process, so that a pool can end it with SIGTERM."""
    for number in _NAMES:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), SignalWatch):
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.set_wakeup_fd(-1)
            signal.signal(number, usual)


def _hold() -> None:
    _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, list(_NAMES)))


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


# Signals are held back during a fork, and reach the usual handlers after it. Otherwise Python would
# drop them in the new process, and a pool would wait for ever for a worker that SIGTERM should end.
_masks: List[Any] = []
os.register_at_fork(after_in_child=_forget_in_child)
os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Optional[str] = None) -> Iterator[Path]:
    """Create a folder; delete it at the end of the block, or when a signal ends the process."""
    name = tempfile.mkdtemp(prefix=prefix, dir=parent)
    _temporary.add(name)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
        _temporary.discard(name)


_temporary: Set[str] = set()


def _end(code: int, text: str) -> None:
    for name in list(_temporary):
        shutil.rmtree(name, ignore_errors=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the stream may be in use or closed
            stream.flush()
    _say(text)
    os._exit(code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(2, text.encode())
