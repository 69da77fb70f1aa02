"""Names input shapes that XLA compiles again for.

XLA compiles a program for each combination of input shapes, seconds each. A shape that was not
planned is named: which input, which dimension, from what to what, and the setting that stops it.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Tuple

from amp_xla import backend
from amp_xla.data.batches.protocol import BatchSource

Signature = Tuple[Tuple[str, Tuple[int, ...]], ...]

# A cluster compiled more often than this, with fewer than 50 runs per compilation, is given up
# ("megamorphic"; tensorflow/compiler/jit/xla_compilation_cache.cc, 1.15 and 2.x).
MAX_COMPILATIONS = 10
# The lazy mode interprets a shape until it has come this often, except for a cluster's first run.
LAZY_REQUESTS = 2
# NVIDIA's TensorFlow 1.15 also gives up a cluster that took longer than this to compile.
MAX_COMPILE_SECONDS = 30.0

_ADVICE = {
    0: "fill up the last batch, as amp_xla.data.batches.buckets.Batches does, or drop it",
    1: "pad to a few planned lengths (--shapes) or pack (--packed)",
}


def signature(feed: Mapping[str, Any]) -> Signature:
    """Return the inputs' names and shapes, sorted by name."""
    return tuple((name, tuple(getattr(feed[name], "shape", ()))) for name in sorted(feed))


def watched(step: Any, batches: BatchSource, xla: str, say: Callable[[str], None]) -> Any:
    """Return ``step``, with XLA wrapped so that unplanned shapes are named.

    Of ``batches`` only ``shapes`` is read; ``say`` is called with each sentence for the user.
    """
    if xla == "off":
        return step
    lazy, planned = xla != "no_lazy", len(batches.shapes)
    if lazy and planned > MAX_COMPILATIONS:
        say(
            f"warning: the batches have {planned} shapes, and XLA stops compiling after "
            f"{MAX_COMPILATIONS}; use fewer (--shapes, or --packed for one) or --xla no_lazy"
        )
    return _WatchedStep(step, planned, say, limited=backend.is_fork() and lazy)


class _WatchedStep:
    """A training step that names unplanned shapes; other attributes are the step's."""

    def __init__(self, step: Any, planned: int, say: Callable[[str], None], limited: bool) -> None:
        self._step, self._planned, self._say, self._limited = step, planned, say, limited
        self._runs: Dict[Signature, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, feed: Mapping[str, Any], step: int) -> Any:
        began = time.perf_counter()
        result = self._step(feed, step)
        self._look(signature(feed), time.perf_counter() - began, step)
        return result

    def _look(self, shape: Signature, seconds: float, step: int) -> None:
        runs = self._runs[shape] = self._runs.get(shape, 0) + 1
        if self._limited and seconds > MAX_COMPILE_SECONDS and runs <= LAZY_REQUESTS + 1:
            self._say(
                f"step {step} took {seconds:.0f} s: this TensorFlow stops compiling a cluster that "
                f"took more than {MAX_COMPILE_SECONDS:.0f} s. Use --xla no_lazy, or lite, whose "
                f"clusters are small"
            )
        elif runs == 1 and len(self._runs) > self._planned:
            known = [signature for signature in self._runs if signature != shape]
            changes = min((_differences(earlier, shape) for earlier in known), key=len)
            parts = [
                f"dimension {dimension} of {', '.join(names)} went from {old} to {new}"
                for (dimension, old, new), names in sorted(changes.items())
            ]
            advice = [_ADVICE[d] for d in sorted({d for d, _, _ in changes}) if d in _ADVICE]
            self._say(
                f"step {step} took {seconds:.1f} s: XLA compiles for a shape beyond the "
                f"{self._planned} planned: {'; '.join(parts)}"
                + (f". To stop it: {'; '.join(advice)}" if advice else "")
            )


def _differences(old: Signature, new: Signature) -> Dict[Tuple[int, int, int], List[str]]:
    """Return (dimension, old size, new size) -> inputs."""
    changes: Dict[Tuple[int, int, int], List[str]] = {}
    for (name, old_shape), (_, shape) in zip(old, new):
        for dimension, (before, after) in enumerate(zip(old_shape, shape)):
            if before != after:
                changes.setdefault((dimension, before, after), []).append(name)
    return changes
