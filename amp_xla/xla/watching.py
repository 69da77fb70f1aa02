"""A training step that says when XLA has to compile for a shape that nobody planned."""

from __future__ import annotations

import itertools
import time
from typing import Any, Callable, Mapping, Optional

from amp_xla import backend
from amp_xla.xla.shapes import MAX_COMPILE_SECONDS, ShapeWatch, given_up, signature


class WatchedStep:
    """A ``TrainStep`` under a ``ShapeWatch``; everything else is the step's own.

    Args:
      step: the training step.
      planned: how many shapes its batches have.
      say: gets a sentence for each shape too many.
      longest: see ``ShapeWatch``.
    """

    def __init__(
        self,
        step: Any,
        planned: int,
        say: Callable[[str], None],
        longest: Optional[float] = None,
    ) -> None:
        self._step, self._say = step, say
        self.watch = ShapeWatch(planned, longest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, feed: Mapping[str, Any], step: int) -> Any:
        began = time.perf_counter()
        result = self._step(feed, step)
        text = self.watch.see(feed, time.perf_counter() - began, step)
        if text is not None:
            self._say(text)
        return result


def watched(step: Any, batches: Any, xla: str, say: Callable[[str], None]) -> Any:
    """``step`` as it is without XLA, else watched; warns beforehand where XLA would give up.

    Args:
      step: the training step.
      batches: with ``epoch`` and, where they are planned, ``shapes``.
      xla: as in ``Settings``.
      say: gets sentences for the user.
    """
    if xla == "off":
        return step
    planned = getattr(batches, "shapes", None)
    if planned is not None and len(planned) > 1:
        names = step.input_names
        plan = [
            signature({name: getattr(batch, name) for name in names})
            for batch in itertools.islice(batches.epoch(0), 2000)
        ]
        trouble = given_up(plan, lazy=xla != "no_lazy")
        if trouble is not None:
            say(f"warning: {trouble}")
    longest = MAX_COMPILE_SECONDS if backend.is_fork() and xla != "no_lazy" else None
    return WatchedStep(step, len(planned) if planned is not None else 1, say, longest)
