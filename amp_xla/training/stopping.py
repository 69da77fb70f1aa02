"""Orderly stops: the first signal asks, the second one insists."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Dict, Optional

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


class Stopped(Exception):
    """A signal ended the run in good order; ``exit_code`` is what the process returns."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SignalWatch:
    """Within ``with SignalWatch() as watch``, ``watch.received`` names the first signal."""

    def __init__(self) -> None:
        self.received: Optional[str] = None
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> SignalWatch:
        for name in _NAMES:
            number = getattr(signal, name)
            try:
                self._before[number] = signal.signal(number, self._receive)
            except ValueError:  # not in the main thread: the host program handles signals
                break
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for SIGINT, 0 for Slurm's SIGUSR1 (it asked us to, in time)."""
        return {"SIGTERM": 143, "SIGINT": 130}.get(self.received or "", 0)
