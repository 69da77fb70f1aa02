"""Which input shapes XLA meets: those planned, and those that make it compile again.

XLA compiles a program for every combination of input shapes. The batches here come in a few; a
feed that is not among them costs seconds, and it is named: which input, which dimension, from what
to what, and the setting that stops it.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from amp_xla import backend
from amp_xla.data.batches.protocol import BatchSource

Signature = Tuple[Tuple[str, Tuple[int, ...]], ...]

# tensorflow/compiler/jit/xla_compilation_cache.cc: a cluster that was compiled more often than
# this, with fewer runs than this for each, is given up ("megamorphic").
MAX_COMPILATIONS = 10
MIN_RUNS_EACH = 50
# The lazy mode interprets a shape until it has come this often, but for a cluster's first run.
LAZY_REQUESTS = 2
# NVIDIA's TensorFlow 1.15 also gives up a cluster that took longer than this to compile.
MAX_COMPILE_SECONDS = 30.0

_ADVICE = {
    0: "fill the last batch up, as amp_xla.data.batches.buckets.Batches does, or drop it",
    1: "pad to a few planned lengths (Batches with choose_lengths; --shapes in the recipes) or "
    "pack (--packed), instead of padding to the longest of each batch",
}


def signature(feed: Mapping[str, Any]) -> Signature:
    """Input names with the shapes fed, in the order of the names."""
    return tuple((name, tuple(getattr(feed[name], "shape", ()))) for name in sorted(feed))


class ShapeWatch:
    """Notices feeds of a new shape, and what they cost.

    Args:
      planned: how many shapes the batches have; that many come without a word.
      longest: seconds of compilation after which XLA gives a cluster up; None = it never does.
    """

    def __init__(self, planned: int, longest: Optional[float] = None) -> None:
        self._planned, self._longest = planned, longest
        self._seconds: Dict[Signature, List[float]] = {}
        self.late: List[str] = []

    def see(self, feed: Mapping[str, Any], seconds: float, step: int) -> Optional[str]:
        """Counts a step; returns a sentence if it is a new shape or compiled for too long.

        Args:
          feed: name -> array.
          seconds: what the step took, compilation included.
          step: its number, for the sentence.
        """
        shape = signature(feed)
        known = self._seconds.setdefault(shape, [])
        known.append(seconds)
        if (
            self._longest is not None
            and seconds > self._longest
            and len(known) <= LAZY_REQUESTS + 1
        ):
            return (
                f"step {step} took {seconds:.0f} s: if XLA compiled one cluster for more than "
                f"{self._longest:.0f} s of it, this TensorFlow gives that cluster up for good. To "
                f"stop it: xla=no_lazy, which never gives up, or lite, whose clusters are small"
            )
        if len(known) > 1 or len(self._seconds) <= self._planned:
            return None
        nearest = min(
            (s for s in self._seconds if s != shape), key=lambda s: len(_differences(s, shape))
        )
        text = (
            f"step {step} took {seconds:.1f} s: XLA compiles for shapes that were not planned "
            f"({self._planned} were): {_describe(_differences(nearest, shape))}"
        )
        self.late.append(text)
        return text

    @property
    def shapes(self) -> int:
        """How many different shapes have been fed."""
        return len(self._seconds)

    @property
    def compile_seconds(self) -> float:
        """Time beyond each shape's fastest step in its first four: warm-up and compilation."""
        return sum(sum(steps[:4]) - min(steps) * len(steps[:4]) for steps in self._seconds.values())


def _differences(old: Signature, new: Signature) -> List[Tuple[str, int, int, int]]:
    """(input, dimension, old size, new size); a changed rank is dimension -1."""
    before = dict(old)
    out = []
    for name, shape in new:
        was = before.get(name, ())
        if len(was) != len(shape):
            out.append((name, -1, len(was), len(shape)))
            continue
        out += [(name, i, a, b) for i, (a, b) in enumerate(zip(was, shape)) if a != b]
    return out


def _describe(differences: Sequence[Tuple[str, int, int, int]]) -> str:
    parts = []
    for dimension, group in itertools.groupby(
        sorted(differences, key=lambda d: (d[1], d[2:])), key=lambda d: (d[1], d[2], d[3])
    ):
        names = ", ".join(d[0] for d in group)
        where = "the rank" if dimension[0] < 0 else f"dimension {dimension[0]}"
        parts.append(f"{where} of {names} went from {dimension[1]} to {dimension[2]}")
    advice = [_ADVICE[d] for d in sorted({d[1] for d in differences}) if d in _ADVICE]
    return "; ".join(parts) + (". To stop it: " + "; ".join(advice) if advice else "")


def too_many(shapes: int) -> Optional[str]:
    """Return a warning if XLA may give the main cluster up for this number of shapes, else None.

    Source: ``XlaCompilationCache::CompileImpl`` and ``ShouldBeMegamorphic``, TensorFlow 1.15; 2.x
    has the same rule.
    """
    if shapes <= MAX_COMPILATIONS:
        return None
    return (
        f"{shapes} shapes: after {MAX_COMPILATIONS} compilations with fewer than {MIN_RUNS_EACH} "
        f"steps each XLA compiles nothing new. Use at most {MAX_COMPILATIONS} shapes (--shapes, "
        "or --packed for one), or --xla no_lazy"
    )


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


def watched(step: Any, batches: BatchSource, xla: str, say: Callable[[str], None]) -> Any:
    """``step`` as it is without XLA, else watched; warns beforehand where XLA would give up.

    Args:
      step: the training step.
      batches: what it will be fed.
      xla: as in ``Settings``.
      say: gets sentences for the user.
    """
    if xla == "off":
        return step
    planned = len(batches.shapes)
    warning = too_many(planned) if xla != "no_lazy" else None
    if warning is not None:
        say(f"warning: {warning}")
    longest = MAX_COMPILE_SECONDS if backend.is_fork() and xla != "no_lazy" else None
    return WatchedStep(step, planned, say, longest)
