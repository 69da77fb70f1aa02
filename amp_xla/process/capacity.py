"""Memory that is there, and a batch that is far too large for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Sequence, Tuple

from amp_xla.errors import AmpXlaError

_HALF = 2  # bytes of a number in half precision, the least that an activation takes


def available() -> Optional[float]:
    """Bytes of RAM that this process may still take: the machine's, or its container's."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(float(x.split()[1]) for x in lines if x.startswith("MemAvailable:")) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    root = Path("/sys/fs/cgroup")
    try:
        limit = float((root / "memory.max").read_text())
        free = min(free, limit - float((root / "memory.current").read_text()))
    except (OSError, ValueError):  # no such limit ("max"), or an older kernel
        pass
    return free


def refuse_what_cannot_fit(shapes: Sequence[Tuple[int, int]], widths: Sequence[int]) -> None:
    """Says so before the kernel ends the process without a word.

    A bound from below, which is far from what a step takes: what the layers with weights put out is
    kept for the backward pass. So what passes may still be too large.

    Args:
      shapes: (rows, tokens) of the batches.
      widths: numbers that each such layer puts out for a token.

    Raises:
      AmpXlaError: not even that fits.
    """
    free = available()
    rows, length = max(shapes, key=lambda shape: shape[0] * shape[1])
    least = rows * length * sum(widths) * _HALF
    if free is not None and least > free:
        raise AmpXlaError(
            f"a step of {rows:,} rows x {length} tokens needs more than {least / 2**30:,.0f} GiB, "
            f"and {free / 2**30:,.1f} GiB are free: take fewer rows (--batch-size, --micro-batch) "
            f"or shorter ones"
        )


def widths(model: Any) -> Sequence[int]:
    """The last dimension of what each layer with weights of a Keras model puts out by the token."""
    found = []
    for layer in model.layers:
        shape = getattr(layer, "output_shape", None)
        if layer.weights and isinstance(shape, tuple) and len(shape) == 3 and shape[-1]:
            found.append(int(shape[-1]))
    return found
