"""The result of a rehearsal: values, JSON and text."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence

from amp_xla.diagnose.finding import Finding
from amp_xla.diagnose.report_text import JsonReport, columns
from amp_xla.graph.virtual_gpu import CAPABILITY

_SHOWN_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Step:
    """One step in float32 and in mixed precision; ``finite`` is about mixed precision."""

    step: int
    float32_loss: float
    half_loss: float
    loss_scale: float
    finite: bool

    @property
    def difference(self) -> float:
        """Difference of the two losses, relative to the float32 loss."""
        return abs(self.half_loss - self.float32_loss) / max(abs(self.float32_loss), 1e-12)

    def __str__(self) -> str:
        return (
            f"step {self.step}: loss float32 {self.float32_loss:.6g}, amp {self.half_loss:.6g}, "
            f"scale {self.loss_scale:g}{'' if self.finite else '; amp is NOT FINITE'}"
        )


@dataclasses.dataclass
class LayerHealth:
    """One Keras layer, over all examined steps.

    Attributes:
      largest_activation: the largest number that the forward pass rounds to half, divided by 65504;
        above 1 it overflows.
      activations_lost: share of these numbers that half precision makes zero.
      largest_gradient: as ``largest_activation``, in the backward pass at the current loss scale.
      backward_lost: as ``activations_lost``, in the backward pass.
      gradient_error: error of its weights' gradients in the worst step: the norm of the difference
        between mixed precision and float32, divided by the norm in float32.
      gradients_lost: share of its weights' gradients that are zero in mixed precision but not in
        float32.
      gradients_lost_then: the same at the suggested loss scale.
    """

    layer: str
    largest_activation: float = 0.0
    activations_lost: float = 0.0
    largest_gradient: float = 0.0
    backward_lost: float = 0.0
    gradient_error: float = 0.0
    gradients_lost: float = 0.0
    gradients_lost_then: float = 0.0


@dataclasses.dataclass(frozen=True)
class Rehearsal(JsonReport):
    """The result of ``amp_xla.diagnose.rehearse``; ``rehearsal.json`` has its fields.

    Attributes:
      layers: in the order of the model.
      loss_scale: loss scale of the last step.
      suggested_loss_scale: the largest power of two at which the largest number of the backward
        pass is still a factor of 8 below overflow.
      finding: the first non-finite node; None if everything was finite.
    """

    tensorflow: str
    steps: Sequence[Step]
    layers: Sequence[LayerHealth]
    loss_scale: float
    suggested_loss_scale: float
    finding: Optional[Finding]

    @property
    def worst_difference(self) -> float:
        """Largest relative difference of the losses; infinite if amp was not finite."""
        return max(step.difference if step.finite else math.inf for step in self.steps)

    def __str__(self) -> str:
        parts = [_losses(self), _layers(self), _scale(self)]
        if self.finding is not None:
            parts.append(str(self.finding))
        return "\n\n".join(parts)


def _losses(report: Rehearsal) -> str:
    steps = report.steps
    shown = [*steps[: -1 : -(-len(steps) // _SHOWN_STEPS)], steps[-1]]
    return (
        f"TensorFlow {report.tensorflow}, a virtual GPU {CAPABILITY}, {len(steps)} steps\n"
        f"worst difference of the losses: {report.worst_difference:.2%}\n\n"
    ) + "\n".join(map(str, shown))


def _layers(report: Rehearsal) -> str:
    rows = [["layer", "activation", "lost", "gradient", "lost", "error", "weights", "then"]]
    for layer in report.layers:
        rows.append([
            layer.layer,
            f"{layer.largest_activation:.2g}",
            f"{layer.activations_lost:.2%}",
            f"{layer.largest_gradient:.2g}",
            f"{layer.backward_lost:.2%}",
            f"{layer.gradient_error:.2%}",
            f"{layer.gradients_lost:.2%}",
            f"{layer.gradients_lost_then:.2%}",
        ])  # fmt: skip
    return columns(rows) + (
        "\nactivation, gradient: the largest number rounded to float16 in the forward and backward "
        "pass, divided by 65504 (above 1 overflows);\nlost: share of these numbers that become "
        "zero; error: relative error of the weights' gradients, worst step;\nweights: share of the "
        "weights' gradients that become zero; then: the same at the suggested loss scale"
    )


def _scale(report: Rehearsal) -> str:
    if report.finding is not None and report.finding.phase == "forward":
        return "no loss scale prevents an overflow of the forward pass"
    return (
        f"suggested constant loss scale: {report.suggested_loss_scale:g} (now "
        f"{report.loss_scale:g}): the largest power of two that leaves a factor of 8 to 65504"
    )
