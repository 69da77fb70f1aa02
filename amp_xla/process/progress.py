"""Messages on standard error: notes, and a progress bar or one line per log interval."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, Optional

from tqdm import tqdm

from amp_xla.process.checkout import as_typed
from amp_xla.process.output import message, messages
from amp_xla.process.world import world

_SILENT_SECONDS = 8.0
# The bar comes last: tqdm cuts the line at the terminal's width.
_FORMAT = "{percentage:3.0f}% {n_fmt}/{total_fmt} {remaining} left{postfix} |{bar}|"


def note(text: str, ranks: int = 1) -> None:
    """Print lines to standard error on the first ``ranks`` ranks, above the progress bar."""
    if world().rank < ranks:
        with messages():
            tqdm.write(message(as_typed(text), "\n"), file=sys.stderr)


class Progress:
    """Progress of a run of ``total`` steps.

    The bar appears after the first step, which is slow and would spoil the estimate of the time.
    """

    def __init__(self, total: int, start: int) -> None:
        self._bar: Optional[Any] = None
        self.total, self._step = total, start
        self._hidden = world().rank > 0
        self._seconds, self._samples = time.monotonic(), 0
        self._printed = self._seconds

    def advance(self, samples: int) -> None:
        """Count one step of ``samples`` real samples."""
        self._samples += samples
        self._step += 1
        with messages():
            if self._bar is not None:
                self._bar.update(1)
            elif not self._hidden and _columns() > 0:
                self._bar = tqdm(
                    total=self.total, initial=self._step, leave=False, dynamic_ncols=True,
                    mininterval=0.2, bar_format=_FORMAT,
                )  # fmt: skip
        self.alive(f"step {self._step}/{self.total}")

    def alive(self, doing: str) -> None:
        """Print ``doing`` if there is no bar and nothing was printed for some seconds."""
        if self._bar is None and time.monotonic() - self._printed > _SILENT_SECONDS:
            self._print(doing)

    def _print(self, line: str) -> None:
        if not self._hidden:
            with messages():
                print(line, file=sys.stderr, flush=True)
        self._printed = time.monotonic()

    def measure(self) -> float:
        """Return samples per second since the last call; pauses do not count."""
        seconds = time.monotonic()
        rate = self._samples / max(seconds - self._seconds, 1e-9)
        self._seconds, self._samples = seconds, 0
        return rate

    def pause(self, seconds: float) -> None:
        """Exclude ``seconds`` of evaluation or saving from the next rate."""
        self._seconds += seconds

    def show(self, step: int, values: Dict[str, str]) -> None:
        """Show ``values`` in the progress bar, or as one line if there is no bar.

        The bar leaves out the last values if the terminal is too narrow for them.
        """
        words = [f"{name} {value}" for name, value in values.items()]
        if self._bar is None:
            self._print("  ".join([f"step {step}/{self.total}", *words]))
            return
        with messages():
            room = _columns() - len(f"100% {self.total}/{self.total} 00:00:00 left, ")
            while words and len("  ".join(words)) > room:
                words.pop()
            self._bar.set_postfix_str("  ".join(words), refresh=False)
            if step >= self.total:  # the bar stays, above the line of the last evaluation
                self._bar.leave = True
                self.close()

    def hide(self) -> None:
        """Show nothing from now on, for example because Keras shows its own bar."""
        self._hidden = True
        self.close()

    def close(self) -> None:
        """Remove the bar from the terminal, unless it shows the last step."""
        if self._bar is not None:
            with messages():
                self._bar.close()
        self._bar = None


def _columns() -> int:
    """Return the terminal's width; 0 if it is unknown or standard error is no terminal."""
    return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0
