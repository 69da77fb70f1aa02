"""Orderly stops: the first signal asks, the second one insists."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
# What a shell shows for these signals; Slurm's SIGUSR1 asked us, in time.
_EXIT_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129, "SIGUSR1": 0}
# Launchers pass a signal on that the whole process group has got already; nobody types so fast.
_SAME_SIGNAL_SECONDS = 0.5
# Where nothing needs saving: time to clean up, also for code that swallows every exception and
# for calls into libraries that run no Python for minutes.
_GRACE_SECONDS = 5.0
# While C++ libraries are loaded, what gives standard error back to the user. An exception that
# comes out of Python there aborts the process, so none is raised.
native: List[Callable[[], None]] = []


class Stopped(BaseException):
    """A signal ended the run in good order; ``exit_code`` is what the process returns.

    Not an ``Exception``: what catches those to go on, or to call them something else, as imports of
    extension modules do, is not asked.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SignalWatch:
    """Within ``with SignalWatch() as watch``, ``watch.received`` names the first signal.

    SIGTERM, SIGINT, SIGHUP and SIGUSR1 only leave a mark, which the loop reads between two steps;
    inside ``immediately`` the first raises ``Stopped``. A second signal ends the process at once,
    even if the main thread is deep inside a compilation: a thread of its own waits for it. SIGHUP
    stays ignored where it is ignored, which is what ``nohup`` asks for.
    """

    def __init__(self) -> None:
        self.received: Optional[str] = None
        self._immediately: List[str] = []
        self._nothing_to_save = 0
        self._ending = False
        self._before: Dict[int, Any] = {}
        self._wakeup = -1
        self._write_end = -1

    def __enter__(self) -> SignalWatch:
        try:
            for name in _NAMES:
                number = getattr(signal, name)
                if name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._receive)
        except ValueError:  # not in the main thread: the host program handles signals
            return self
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup = signal.set_wakeup_fd(self._write_end)
        threading.Thread(target=self._insist, args=(read_end,), daemon=True, name="signals").start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._write_end >= 0:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._write_end)  # the thread reads the end of the pipe and returns
            self._write_end = -1
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        if self.received is not None:
            return  # said already; raised again, it would break off what the first is tidying up
        self.received = signal.Signals(number).name
        self._ending = bool(self._nothing_to_save)
        if not self._immediately:
            return
        stopped = self.stopped(self._immediately[-1])
        # TensorFlow's C++ calls Python where an exception prints a traceback or aborts.
        if self._ending and (native or "tensorflow" in sys.modules):
            _end(stopped.exit_code, f"{stopped}\n")
        if not native:
            raise stopped

    @contextlib.contextmanager
    def immediately(self, during: str, nothing_to_save: bool = False) -> Iterator[None]:
        """Inside, a signal raises ``Stopped`` where it finds the main thread.

        Whatever the code inside makes of that, ``Stopped`` is what leaves the block.

        Args:
          during: what was going on, for the message.
          nothing_to_save: the process may be ended if it is still there after some seconds.
        """
        if self.received:
            raise self.stopped(during)
        self._immediately.append(during)
        self._nothing_to_save += nothing_to_save
        try:
            yield
        except Stopped:  # perhaps with more to say
            raise
        except BaseException:
            self.check(during)
            raise
        else:
            self.check(during)
        finally:
            self._immediately.pop()
            self._nothing_to_save -= nothing_to_save

    def check(self, where: str) -> None:
        """Raises ``Stopped`` if a signal has come."""
        if self.received:
            raise self.stopped(where)

    def stopped(self, where: str) -> Stopped:
        """The exception to raise for the signal that came."""
        return Stopped(f"stopped by {self.received} {where}".rstrip(), self.exit_code)

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP, 0 for SIGUSR1."""
        return _EXIT_CODES.get(self.received or "", 0)

    def _insist(self, read_end: int) -> None:
        """Ends the process at the second signal; Python writes each signal's number to the pipe."""
        first, came = "", 0.0
        while True:
            left = None
            if first and self._may_end():
                left = max(0.0, came + _GRACE_SECONDS - time.monotonic())
            if not select.select([read_end], [], [], left)[0]:
                if self._may_end():
                    _end(_EXIT_CODES[first], f"{first}: ended; there was nothing to save\n")
                continue
            data = os.read(read_end, 1)
            if not data:
                os.close(read_end)
                return
            names = [name for name in _NAMES if getattr(signal, name) == data[0]]
            if not names:
                continue
            if not first:
                first, came = names[0], time.monotonic()
                if not self._may_end():
                    _say(
                        f"{first}: finishing the step and writing a checkpoint; a second signal "
                        f"ends the process at once\n"
                    )
            elif time.monotonic() - came > _SAME_SIGNAL_SECONDS:
                text = "second signal: ending at once; the last checkpoint is as it was\n"
                _end(128 + data[0], text)

    def _may_end(self) -> bool:
        return self._ending or bool(self._nothing_to_save)


def _end(code: int, text: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # in the middle of a write, or nowhere to write to
            stream.flush()
    for give_back in native:
        give_back()
    _say(text)
    os._exit(code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be what has gone
        os.write(2, text.encode())
