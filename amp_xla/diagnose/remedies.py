"""Suggests remedies for a number that float16 cannot hold."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, List, Optional

from amp_xla import backend
from amp_xla.diagnose.constants import LARGEST
from amp_xla.diagnose.node_origins import Source
from amp_xla.graph import lists as op_lists

_MARGIN = 2.0  # between the largest number seen and the limit, for the next batches


@dataclasses.dataclass(frozen=True)
class Case:
    """A non-finite node.

    Attributes:
      op, phase: as in ``finding.Finding``.
      layer: the Keras layer, or None.
      source: line of code, or None.
      largest_output: its largest magnitude before rounding, 0 if nothing was finite.
      largest_constant: the largest constant among its inputs, before rounding.
      loss_scale: in force.
      float32_too: float32 fails as well.
      lists: the op lists in force.
    """

    op: str
    phase: str
    layer: Any
    source: Optional[Source]
    largest_output: float
    largest_constant: float
    loss_scale: float
    float32_too: bool
    lists: Optional[op_lists.OpLists]


def advise(case: Case) -> List[str]:
    """Return remedies, the best first."""
    scaled = case.phase == "backward" and case.loss_scale > 1.0
    if case.float32_too and scaled:
        return [_lower_scale(case)]
    if case.float32_too:
        return [
            "look at the batch (saved beside this report) for NaN, empty rows or labels out of "
            "range; lower the learning rate, or lengthen the warm-up; clip gradients"
        ]
    version = backend.bert4keras_version()
    old = version < backend.SAFE_MASKS
    if old and type(case.layer).__name__ in backend.CRF_LAYERS:
        return [
            f"use bert4keras 0.11.5: {type(case.layer).__name__} of {_text(version)} recognizes "
            f"padding by a score below -1e6, which no float16 number is, so no infinity is right "
            f"for it; or train in tf32: AMP_XLA_PRECISION=tf32"
        ]
    advice = []
    if case.largest_constant > LARGEST:
        if old and _masks(case.source):
            advice += [
                f"K.set_infinity(1e4), which `import amp_xla.setup` does for you "
                f"(AMP_XLA_INFINITY=1e4): bert4keras {_text(version)} masks with "
                f"{case.largest_constant:g}, which float16 cannot hold",
                "use bert4keras 0.11.5, which masks with `where` instead",
            ]
        else:
            advice.append(
                f"replace the constant {case.largest_constant:g} by one below {LARGEST:g}"
            )
    elif scaled:
        advice.append(_lower_scale(case))
    elif case.phase == "forward" and case.largest_output > LARGEST:
        advice.append(
            f"bring the activations down: {case.largest_output:.4g} is "
            f"{case.largest_output / LARGEST:.3g} times what float16 holds (a normalisation "
            f"before this layer, or a smaller initialisation)"
        )
    line = op_lists.keep_in_float32(case.op, backend.kind(), case.lists)
    return [*advice, f"keep {case.op} in float32 (all of them): {line}"]


def _text(version: Any) -> str:
    return ".".join(map(str, version))


def _masks(source: Optional[Source]) -> bool:
    return source is not None and (
        source.path.startswith("bert4keras/") or source.function == "banned"
    )


def _lower_scale(case: Case) -> str:
    if case.largest_output > LARGEST and not case.float32_too:
        fitting = case.loss_scale * LARGEST / case.largest_output / _MARGIN
        scale = 2.0 ** math.floor(math.log2(fitting))
        return f"lower the loss scale from {case.loss_scale:g} to {scale:g}: --loss-scale {scale:g}"
    return f"lower the loss scale from {case.loss_scale:g}, or use --loss-scale dynamic"
