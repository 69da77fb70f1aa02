"""The first non-finite node, as the overflow finder reports it."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Tuple

from amp_xla.diagnose.node_origins import Source
from amp_xla.diagnose.recorder import Range

OVERFLOW = 65520.0  # float16 rounds this and larger numbers to infinity


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of the reported node, before the pass' cast.

    Attributes:
      name, op: the node that made it.
      range: its values.
      to_half: whether it was rounded to half on the way.
    """

    name: str
    op: str
    range: Range
    to_half: bool

    @property
    def beyond_float16(self) -> bool:
        """True if a finite element becomes infinite when it is rounded."""
        return self.range.largest >= OVERFLOW

    @property
    def lost(self) -> bool:
        """True if it was rounded to half and a finite element became infinite."""
        return self.to_half and self.beyond_float16

    def __str__(self) -> str:
        text = f"{self.name} ({self.op}): {self.range}"
        if self.lost:
            return text + ", infinite once rounded to float16"
        return text + (", rounded to float16" if self.to_half else "")


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first node that is not finite.

    Attributes:
      node, op, layer, phase: the node; ``phase`` is ``forward`` or ``backward``.
      half: whether it computes in half.
      output: its result before rounding to half.
      inputs: its inputs.
      source: the line of code that made it (for a gradient: its forward operation), if known.
      problem: one sentence about the cause.
      float32_too: float32 fails on this batch as well, so mixed precision is not the cause.
      remedies: commands and environment lines to copy, the best first.
      float32_loss, half_loss: losses of the two replays.
      loss_scale: in force when it happened.
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
            *([] if self.source is None else [f"  made by {self.source}"]),
            *(f"  input  {entry}" for entry in self.inputs),
            f"  output {self.output}",
            f"  loss of this batch: float32 {self.float32_loss:g}, mixed precision "
            f"{self.half_loss:g}, loss scale {self.loss_scale:g}",
            *(f"  fix: {remedy}" for remedy in self.remedies),
        ]
        return "\n".join(lines)

    def to_json(self) -> Dict[str, Any]:
        """Return plain values; losses as text, because JSON has no NaN."""
        values = dataclasses.asdict(self)
        values["source"] = None if self.source is None else str(self.source)
        values.update(float32_loss=str(self.float32_loss), half_loss=str(self.half_loss))
        return values
