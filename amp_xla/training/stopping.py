"""Orderly stops: the first signal asks, the second one insists."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time
from types import FrameType
from typing import Any, Dict, Iterator, List, Optional

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")
# 143 and 130 are what a shell shows for these signals; Slurm's SIGUSR1 asked us, in time.
_EXIT_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 0}
# Launchers pass a signal on that the whole process group has got already; nobody types so fast.
_SAME_SIGNAL_SECONDS = 0.5


class Stopped(Exception):
    """A signal ended the run in good order; ``exit_code`` is what the process returns."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SignalWatch:
    """Within ``with SignalWatch() as watch``, ``watch.received`` names the first signal.

    SIGTERM, SIGINT and SIGUSR1 only leave a mark, which the loop reads between two steps; inside
    ``immediately`` they raise ``Stopped``. A second signal ends the process at once, even if the
    main thread is deep inside a compilation: a thread of its own waits for it.
    """

    def __init__(self) -> None:
        self.received: Optional[str] = None
        self._immediately: List[str] = []
        self._before: Dict[int, Any] = {}
        self._wakeup = -1
        self._write_end = -1

    def __enter__(self) -> SignalWatch:
        try:
            for name in _NAMES:
                number = getattr(signal, name)
                self._before[number] = signal.signal(number, self._receive)
        except ValueError:  # not in the main thread: the host program handles signals
            return self
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup = signal.set_wakeup_fd(self._write_end)
        threading.Thread(target=_insist, args=(read_end,), daemon=True, name="signals").start()
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
        if self.received is None:
            self.received = signal.Signals(number).name
        if self._immediately:
            raise self.stopped(self._immediately[-1])

    @contextlib.contextmanager
    def immediately(self, during: str) -> Iterator[None]:
        """Inside, a signal raises ``Stopped`` where it finds the main thread.

        Args:
          during: what was going on, for the message.
        """
        if self.received:
            raise self.stopped(during)
        self._immediately.append(during)
        try:
            yield
        finally:
            self._immediately.pop()

    def stopped(self, where: str) -> Stopped:
        """The exception to raise for the signal that came."""
        return Stopped(f"stopped by {self.received} {where}", self.exit_code)

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for SIGINT, 0 for SIGUSR1."""
        return _EXIT_CODES.get(self.received or "", 0)


def _insist(read_end: int) -> None:
    """Ends the process at the second signal; Python writes each signal's number to the pipe."""
    numbers = {int(getattr(signal, name)) for name in _NAMES}
    first: Optional[float] = None
    while True:
        data = os.read(read_end, 1)
        if not data:
            os.close(read_end)
            return
        (number,) = struct.unpack("B", data)
        if number not in numbers:
            continue
        now = time.monotonic()
        if first is None:
            first = now
            text = (
                f"{signal.Signals(number).name}: finishing the step and writing a checkpoint; "
                f"a second signal ends the process at once\n"
            )
            os.write(2, text.encode())
        elif now - first > _SAME_SIGNAL_SECONDS:
            os.write(2, b"second signal: ending at once; the last checkpoint is as it was\n")
            os._exit(128 + number)
