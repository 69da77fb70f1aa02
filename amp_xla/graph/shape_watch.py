"""Reports unplanned input shapes, since XLA compiles for seconds for each new combination."""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Set, Tuple

from amp_xla.data.batches.protocol import BatchSource

Signature = Tuple[Tuple[str, Tuple[int, ...]], ...]

# A cluster compiled more often than this, with fewer than 50 runs per compilation, is given up
# ("megamorphic"; tensorflow/compiler/jit/xla_compilation_cache.cc, 1.15 and 2.x).
MAX_COMPILATIONS = 10


def signature(feed: Mapping[str, Any]) -> Signature:
    """Return the inputs' names and shapes, sorted by name."""
    return tuple((name, tuple(getattr(feed[name], "shape", ()))) for name in sorted(feed))


def watched(step: Any, batches: BatchSource, xla: str, say: Callable[[str], None]) -> Any:
    """Return ``step``, with XLA wrapped so that unplanned shapes are named.

    Of ``batches`` only ``shapes`` is read; ``say`` is called with each sentence for the user.
    """
    if xla == "off":
        return step
    planned = len(batches.shapes)
    if xla != "no_lazy" and planned > MAX_COMPILATIONS:
        say(
            f"warning: the batches have {planned} shapes, and XLA stops compiling after "
            f"{MAX_COMPILATIONS}; use fewer (--shapes, or --packed for one) or --xla no_lazy"
        )
    return _WatchedStep(step, planned, say)


class _WatchedStep:
    """A training step that names unplanned shapes; other attributes are the step's."""

    def __init__(self, step: Any, planned: int, say: Callable[[str], None]) -> None:
        self._step, self._planned, self._say = step, planned, say
        self._seen: Set[Signature] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, feed: Mapping[str, Any], step: int) -> Any:
        began = time.perf_counter()
        result = self._step(feed, step)
        shapes = signature(feed)
        if shapes not in self._seen and len(self._seen) >= self._planned:
            changes = min(([(a, b) for a, b in zip(old, shapes) if a != b] for old in self._seen),
                          key=len)  # fmt: skip
            words = (f"{name} from {list(old)} to {list(new)}" for (name, old), (_, new) in changes)
            self._say(
                f"step {step} took {time.perf_counter() - began:.1f} s: XLA compiles for a shape "
                f"beyond the {self._planned} planned: {', '.join(words)}. To stop it, pad to a few "
                f"lengths (--shapes) or pack (--packed), and fill up or drop the last batch"
            )
        self._seen.add(shapes)
        return result
