"""Handling of signals that arrive during validation or in callbacks other than ``Run``."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Optional

from amp_xla.process.stopping import SignalWatch
from amp_xla.training.checkpoint import CheckpointError
from amp_xla.training.loop import Content


class StateBefore:
    """State after an epoch's last batch, in memory during validation and callbacks.

    After a signal, a thread saves this state at once, because callbacks may take long and may
    change the weights for a time. The signal ends validation, but callbacks run to their end.
    """

    def __init__(self, loop: Any, watch: SignalWatch) -> None:
        self._loop, self._watch = loop, watch
        self._content: Optional[Content] = None
        self._saving = threading.Lock()

    def take(self) -> None:
        """Read the current state at the end of an epoch, unless there are several ranks."""
        if self._loop.state.evaluate_due and not self._loop.engine.ranks.several:
            self._content = self._loop.content()
            self._watch.save = self._save
            self.check()

    def check(self) -> None:
        """Raise ``Stopped`` after a signal; a resumed run will repeat the evaluation."""
        if self._content is not None:
            self._watch.check("during an evaluation")

    def release(self) -> Optional[Content]:
        """Forget the state and return it; None if there is none."""
        with self._saving:
            content, self._content = self._content, None
        return content

    def _save(self) -> None:
        with self._saving, contextlib.suppress(CheckpointError):  # the loop will raise it again
            if self._content is not None:
                self._loop.save_if_needed(self._content)
