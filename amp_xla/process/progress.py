"""Messages on standard error: notes, and a progress bar or one line per log interval."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, Optional

from tqdm import tqdm

from amp_xla.process.checkout import as_typed
from amp_xla.process.output import message, messages
from amp_xla.process.world import is_main_rank, world

# The bar comes last: tqdm cuts the line at the terminal's width.
_FORMAT = "{percentage:3.0f}% {n_fmt}/{total_fmt} {remaining} left{postfix} |{bar}|"
_FIRST = ("loss", "scale", "skipped")


def note(text: str, ranks: int = 1) -> None:
    """Print lines to standard error on the first ``ranks`` ranks, above the progress bar."""
    if world().rank < ranks:
        with messages():
            tqdm.write(message(as_typed(text), "\n"), file=sys.stderr)


class Progress:
    """Progress of a run of ``total`` steps."""

    def __init__(self, total: int, start: int) -> None:
        self._bar: Optional[Any] = None
        self.total, self._hidden = total, False
        if sys.stderr.isatty() and is_main_rank():
            self._bar = tqdm(
                total=total, initial=start, dynamic_ncols=True, mininterval=0.2, bar_format=_FORMAT
            )
        self._seconds, self._samples = time.monotonic(), 0

    def advance(self, samples: int) -> None:
        """Count one step of ``samples`` real samples."""
        self._samples += samples
        if self._bar is not None:
            with messages():
                self._bar.update(1)

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
        """Show ``values`` in the progress bar, or as one line if there is no terminal."""
        if self._bar is not None:
            ordered = sorted(values, key=lambda name: name not in _FIRST)
            words = [f"{name} {values[name]}" for name in ordered]
            self._bar.set_postfix_str("  ".join(words), refresh=False)
        elif is_main_rank() and not self._hidden:
            words = [f"{name} {value}" for name, value in values.items()]
            with messages():
                print(f"step {step}/{self.total}  {'  '.join(words)}", file=sys.stderr, flush=True)

    def hide(self) -> None:
        """Show nothing from now on: Keras shows its own bar."""
        self.close()
        self._bar, self._hidden = None, True

    def close(self) -> None:
        """Close the bar and leave it on the terminal."""
        if self._bar is not None:
            with messages():
                self._bar.close()
