"""One progress bar on a terminal, one line a log interval elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, Optional

from tqdm import tqdm

from amp_xla.process.world import speaks


def note(text: str) -> None:
    """Prints one line to stderr without breaking a progress bar; of several ranks only one does."""
    if speaks():
        tqdm.write(text, file=sys.stderr)


class Progress:
    """Shows where a run is.

    Args:
      total: steps of the whole run.
      start: step it starts at.
      every: steps between two shown states.
    """

    def __init__(self, total: int, start: int, every: int) -> None:
        self._bar: Optional[Any] = None
        self.every = max(1, every)
        self.total = total
        if sys.stderr.isatty() and speaks():
            self._bar = tqdm(
                total=total, initial=start, unit="step", dynamic_ncols=True, mininterval=0.2
            )
        self._seconds, self._samples = time.monotonic(), 0
        self.samples_per_second = 0.0

    def advance(self, samples: int) -> None:
        """Counts one step of ``samples`` real samples."""
        self._samples += samples
        if self._bar is not None:
            self._bar.update(1)

    def measure(self) -> float:
        """Samples a second since the last call, pauses excluded."""
        now = time.monotonic()
        self.samples_per_second = self._samples / max(now - self._seconds, 1e-9)
        self._seconds, self._samples = now, 0
        return self.samples_per_second

    def pause(self, seconds: float) -> None:
        """Takes time spent elsewhere (evaluation, saving) out of the rate."""
        self._seconds += seconds

    def show(self, step: int, values: Dict[str, str]) -> None:
        """Shows ``values`` beside the bar, or as a line of their own."""
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
        elif speaks():
            words = "  ".join(f"{name} {value}" for name, value in values.items())
            print(f"step {step}/{self.total}  {words}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leaves the bar where it is."""
        if self._bar is not None:
            self._bar.close()
