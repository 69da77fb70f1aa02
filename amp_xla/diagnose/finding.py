"""Finding: the report of the overflow finder on the first non-finite node, and its remedies."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, List, Optional, Tuple

from amp_xla import backend
from amp_xla.diagnose.graph_copies import LARGEST, OVERFLOW, ValueRange
from amp_xla.diagnose.report_text import JsonReport
from amp_xla.graph.virtual_gpu import Colors, keep_in_float32

_MARGIN = 2.0  # by which the largest number stays below the limit, for other batches


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of the reported node, before the casts that the pass inserted."""

    name: str
    op: str
    range: ValueRange
    to_half: bool  # whether one of these casts is to half

    @property
    def lost(self) -> bool:
        """True if rounding to half made a finite element infinite."""
        return self.to_half and self.range.largest >= OVERFLOW

    def __str__(self) -> str:
        text = f"{self.name} ({self.op}): {self.range}"
        if self.lost:
            return text + ", infinite once rounded to float16"
        return text + (", rounded to float16" if self.to_half else "")


@dataclasses.dataclass(frozen=True)
class Finding(JsonReport):
    """The first node that is not finite.

    Attributes:
      phase: ``forward`` or ``backward``.
      half: whether the node computes in half.
      output: the node's result before rounding to half.
      source: the line of code that made the node or, for a gradient, its forward operation; empty
        if unknown.
      problem: one sentence about the cause.
      float32_too: float32 fails on this batch too, so mixed precision is not the cause.
      float32_loss, half_loss: losses of the two replays.
      loss_scale: loss scale of the failed step.
      remedies: advice, with flags or environment variables to copy, the best first.
    """

    node: str
    op: str
    layer: str
    phase: str
    half: bool
    output: ValueRange
    inputs: Tuple[Input, ...]
    source: str
    problem: str
    float32_too: bool
    float32_loss: float
    half_loss: float
    loss_scale: float
    remedies: Tuple[str, ...] = ()

    @property
    def largest(self) -> float:
        """The largest finite magnitude of the result and of inputs that a cast makes infinite."""
        return max([self.output.largest, *(i.range.largest for i in self.inputs if i.lost)])

    def __str__(self) -> str:
        lines = [
            f"first non-finite node: {self.node}",
            f"  {self.op} in {'float16' if self.half else 'float32'}, {self.phase} pass, layer "
            f"{self.layer}; {self.problem}",
            *([f"  made by {self.source}"] if self.source else []),
            *(f"  input  {entry}" for entry in self.inputs),
            f"  output {self.output}",
            f"  loss of this batch: float32 {self.float32_loss:g}, mixed precision "
            f"{self.half_loss:g}, loss scale {self.loss_scale:g}",
            *(f"  fix: {remedy}" for remedy in self.remedies),
        ]
        return "\n".join(lines)


def remedies(
    finding: Finding, layer: Any, constant: float, lists: Optional[Colors]
) -> Tuple[str, ...]:
    """Return remedies for a finding, the best first.

    Args:
      layer: Keras layer of the reported node, or None.
      constant: the largest constant, before rounding, from which the node's result is computed;
        0 = none.
      lists: op lists of the pass; None if it did not run.
    """
    scaled = finding.phase == "backward" and finding.loss_scale > 1.0
    if finding.float32_too and scaled:
        return (_lower_scale(finding),)
    if finding.float32_too:
        return (
            "look at the batch for NaN, empty rows or labels out of range; lower the learning "
            "rate, or lengthen the warm-up; clip gradients",
        )
    version = backend.bert4keras_version()
    old, text = version < backend.SAFE_MASKS, ".".join(map(str, version))
    if old and type(layer).__name__ in backend.CRF_LAYERS:
        return (
            f"use bert4keras 0.11.5: {type(layer).__name__} of {text} recognizes "
            f"padding by a score below -1e6, which float16 cannot hold, so no value of infinity "
            f"works; or train in tf32: AMP_XLA_PRECISION=tf32",
        )
    advice: List[str] = []
    largest, source = finding.largest, finding.source
    masks = source.startswith("bert4keras/") or " in banned: " in source
    if constant > LARGEST and old and masks:
        advice += [
            f"K.set_infinity(1e4), which `import amp_xla.setup` does for you "
            f"(AMP_XLA_INFINITY=1e4): bert4keras {text} masks with {constant:g}, which float16 "
            f"cannot hold",
            "use bert4keras 0.11.5, which masks with `where` instead",
        ]
    elif constant > LARGEST and constant != finding.loss_scale:
        advice.append(f"replace the constant {constant:g} by one below {LARGEST:g}")
    elif scaled:
        advice.append(_lower_scale(finding))
    elif finding.phase == "forward" and largest > LARGEST:
        advice.append(
            f"make the activations smaller: {largest:.4g} is {largest / LARGEST:.3g} times what "
            f"float16 holds (normalize before this layer, or initialize with smaller weights)"
        )
    if lists is None:
        return (*advice, f"keep the layer {finding.layer} in float32: give it dtype='float32'")
    line = keep_in_float32(finding.op, lists)
    return (*advice, f"keep all {finding.op} nodes in float32: {line}")


def _lower_scale(finding: Finding) -> str:
    largest, scale = finding.largest, finding.loss_scale
    if largest > LARGEST and not finding.float32_too:
        fitting = 2.0 ** math.floor(math.log2(scale * LARGEST / largest / _MARGIN))
        return f"lower the loss scale from {scale:g} to {fitting:g}: --loss-scale {fitting:g}"
    return f"lower the loss scale from {scale:g}, or use --loss-scale dynamic"
