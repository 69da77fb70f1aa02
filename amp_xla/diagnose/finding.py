"""The first node that is not finite, as the overflow finder reports it."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Tuple

from amp_xla.diagnose.places import Source
from amp_xla.diagnose.recorder import Range

OVERFLOW = 65520.0  # what float16 rounds to infinity, from here on


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of the named node, as it was before the rewrite's cast.

    Attributes:
      name: of the node that made it.
      op: its type.
      range: what it held.
      to_half: whether it was rounded to half on the way.
    """

    name: str
    op: str
    range: Range
    to_half: bool

    @property
    def beyond_float16(self) -> bool:
        """A finite element becomes infinite when it is rounded."""
        return self.range.largest >= OVERFLOW

    def __str__(self) -> str:
        text = f"{self.name} ({self.op}): {describe(self.range)}"
        if self.to_half and self.beyond_float16:
            return text + ", infinite once rounded to float16"
        return text + (", rounded to float16" if self.to_half else "")


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first node that is not finite.

    Attributes:
      node, op, layer, phase: which; ``phase`` is ``forward`` or ``backward``.
      half: whether it computes in half.
      output: what it computed, before it was rounded to half.
      inputs: what it computed that from.
      source: the line of code that made it (a gradient: its forward operation), if known.
      problem: what happened, a sentence.
      float32_too: float32 fails on this batch as well, so mixed precision is not the cause.
      remedies: what to do, the best first; commands and environment lines to copy.
      float32_loss, half_loss: losses of the two replays.
      loss_scale: the scale it happened at.
    """

    node: str
    op: str
    layer: str
    phase: str
    half: bool
    output: Range
    inputs: Tuple[Input, ...]
    source: Optional[Source]
    problem: str
    float32_too: bool
    remedies: Tuple[str, ...]
    float32_loss: float
    half_loss: float
    loss_scale: float

    def __str__(self) -> str:
        lines = [
            f"first non-finite node: {self.node}",
            f"  {self.op} in {'float16' if self.half else 'float32'}, {self.phase} pass, layer "
            f"{self.layer}; {self.problem}",
            *(f"  made by {self.source}" for _ in [0] if self.source is not None),
            *(f"  input  {entry}" for entry in self.inputs),
            f"  output {describe(self.output)}",
            f"  loss of this batch: float32 {self.float32_loss:g}, mixed precision "
            f"{self.half_loss:g}, loss scale {self.loss_scale:g}",
            *(f"  fix: {remedy}" for remedy in self.remedies),
        ]
        return "\n".join(lines)

    def to_json(self) -> Dict[str, Any]:
        """Plain values; losses as text, as JSON has no NaN."""
        found = dataclasses.asdict(self)
        found["source"] = None if self.source is None else str(self.source)
        for name in ("float32_loss", "half_loss"):
            found[name] = str(found[name])
        return found


def describe(seen: Range) -> str:
    """``-3.2 .. 65e3, 12 NaN of 4096``."""
    text = f"{seen.low:.4g} .. {seen.high:.4g}"
    bad = [f"{n} {word}" for n, word in ((seen.nan, "NaN"), (seen.infinite, "infinite")) if n]
    return text + (f", {' and '.join(bad)} of {seen.size} elements" if bad else "")
