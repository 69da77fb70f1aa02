"""Rehearses mixed-precision training on a CPU, next to float32 training on the same batches.

Every step trains both copies. A few steps are examined: gradients are compared at the same
weights, and the ranges of all tensors that are rounded to half are recorded.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.diagnose.finding import Finding
from amp_xla.diagnose.graph_copies import LARGEST, PairedReplay, ValueRange
from amp_xla.diagnose.node_origins import NodeOrigins, Origin
from amp_xla.diagnose.report_text import JsonReport, columns
from amp_xla.errors import AmpXlaError
from amp_xla.graph import training_graph
from amp_xla.graph.virtual_gpu import CAPABILITY

HEADROOM = 8.0  # factor between the largest gradient and float16's limit, for other batches
HIGHEST_SCALE = 2.0**40  # far below float32's limit, so that the scaled loss has room
EXAMINED = 4  # number of examined steps
_SHOWN_STEPS = 10


@dataclasses.dataclass(frozen=True)
class RehearsedStep:
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
      activations_lost: share of the non-zero numbers that this rounding makes zero.
      largest_gradient: as ``largest_activation``, in the backward pass at the current loss scale.
      backward_lost: as ``activations_lost``, in the backward pass.
      gradient_error: error of its weights' gradients in the worst step: the norm of the difference
        between mixed precision and float32, divided by the norm in float32.
      gradients_lost: share of its weights' non-zero float32 gradients that are zero in mixed
        precision, in the worst step.
      gradients_lost_then: this share at the suggested loss scale, in the last examined step.
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
      suggested_loss_scale: a power of two, at most 2**40, at which the largest number of the
        backward pass is at least a factor of 8 below overflow.
    """

    tensorflow: str
    steps: Sequence[RehearsedStep]
    layers: Sequence[LayerHealth]
    loss_scale: float
    suggested_loss_scale: float
    finding: Optional[Finding]

    @property
    def worst_difference(self) -> float:
        """Largest relative difference of the losses; infinite if amp was not finite."""
        return max(step.difference if step.finite else math.inf for step in self.steps)

    def __str__(self) -> str:
        parts = [_losses(self), _layers(self)]
        if self.finding is None or self.finding.phase == "forward":
            parts.append(_scale(self))
        if self.finding is not None:  # it names the loss scale that its operation needs
            parts.append(str(self.finding))
        return "\n\n".join(parts)


def rehearse(
    model: Any,
    batches: Iterable[Sequence[Any]],
    steps: int = 20,
    on_step: Callable[[RehearsedStep], None] = lambda step: None,
) -> Rehearsal:
    """Train a float32 copy and a mixed-precision copy of the model on a CPU, side by side.

    The model itself is not trained. Half precision is modelled as tensor cores compute it: half
    inputs and results, float32 in between. ``print`` the report to see tables.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``; its weights initialized.
      batches: one batch per step, as for ``inspect``.
      steps: number of steps; fewer if ``batches`` end, or mixed precision is not finite.
      on_step: called with each finished step.

    Raises:
      AmpXlaError: no step was done. PassFailedError, UnsupportedError: as for ``inspect``.
    """
    training = training_graph.view(model)
    values, origins = training.values(), NodeOrigins(training)
    with PairedReplay(training) as replay:
        for copy in ("fp32", "amp"):
            replay.load(copy, values)
        done: List[RehearsedStep] = []
        compared: List[Any] = []  # as ``PairedReplay.examine``
        examined: Tuple[Any, int] = ((), 0)  # batch and number of the last examined step
        finding: Optional[Finding] = None
        numbers = {round(i * (steps - 1) / max(EXAMINED - 1, 1)) for i in range(EXAMINED)}
        for number, batch in zip(range(steps), map(training.arrays, batches)):
            scale, weights = replay.loss_scale("amp", batch, number), replay.weights()
            if number in numbers:
                examined = batch, number
                compared.append(replay.examine(*examined))
            float32_loss, _ = replay.train("fp32", batch, number)
            half_loss, finite = replay.train("amp", batch, number)
            if not training.finite:
                # No step is skipped, so gradients that are not finite make weights that are not.
                finite = finite and all(np.isfinite(w).all() for w in replay.weights().values())
            done.append(RehearsedStep(number, float32_loss, half_loss, scale, finite))
            on_step(done[-1])
            if not finite:  # after this the copies would train differently
                finding = overflow.replay(
                    training, replay.rewritten, {**values, **weights}, batch, number, scale
                )
                break
        if not done:
            raise AmpXlaError(f"steps={steps}: at least one step and one batch are needed")
        layers = _by_layer(replay, origins)
        scale = done[-1].loss_scale
        largest = LARGEST * max((h.largest_gradient for h in layers.values()), default=0.0)
        suggested = min(scale * LARGEST / max(largest, 2.0**-126) / HEADROOM, HIGHEST_SCALE)
        suggested = 2.0 ** math.floor(math.log2(suggested))
        for _ in range(8):
            rescaled = replay.examine(*examined, seed=suggested / scale)
            if np.isfinite(rescaled[:, 0]).all():
                break
            suggested /= 2.0  # a tensor that is not recorded overflowed, e.g. a float32 product
    owners = [origins.of(variable).layer for variable, _ in training.gradients]
    for layer in dict.fromkeys(owners):
        health = layers.setdefault(layer, LayerHealth(layer))
        rows = [owner == layer for owner in owners]
        errors = [_errors(comparison[rows]) for comparison in compared]
        health.gradient_error, health.gradients_lost = map(max, zip(*errors))
        health.gradients_lost_then = _errors(rescaled[rows])[1]
    positions = origins.layer_positions()
    return Rehearsal(
        tensorflow=backend.tensorflow().__version__,
        steps=done,
        layers=sorted(layers.values(), key=lambda h: positions.get(h.layer, len(positions))),
        loss_scale=scale,
        suggested_loss_scale=suggested,
        finding=finding,
    )


def _by_layer(replay: PairedReplay, origins: NodeOrigins) -> Dict[str, LayerHealth]:
    """Return layer -> health; only the fields on activations and the backward pass are set."""
    layers: Dict[str, LayerHealth] = {}
    records: Dict[Origin, List[ValueRange]] = {}
    for (name, _), record in replay.records.items():
        records.setdefault(origins.of(name), []).append(record)
    for (layer, phase), ranges in records.items():
        health = layers.setdefault(layer, LayerHealth(layer))
        largest = max(record.largest for record in ranges) / LARGEST
        lost = sum(r.vanishing for r in ranges) / max(sum(r.nonzero for r in ranges), 1)
        if phase == "forward":
            health.largest_activation, health.activations_lost = largest, lost
        else:
            health.largest_gradient, health.backward_lost = largest, lost
    return layers


def _errors(rows: Any) -> Tuple[float, float]:
    """Return relative error and share of lost elements, given the ``rows`` of ``examine``."""
    error, norm, elements, lost = rows.sum(0)
    relative = math.sqrt(error / norm) if norm else (math.inf if error else 0.0)
    return math.inf if math.isnan(relative) else relative, lost / max(elements, 1.0)


def _losses(report: Rehearsal) -> str:
    steps = report.steps
    shown = [*steps[: -1 : -(-len(steps) // _SHOWN_STEPS)], steps[-1]]
    return (
        f"TensorFlow {report.tensorflow}, a virtual GPU (compute capability {CAPABILITY}), "
        f"{len(steps)} steps\nworst difference of the losses: {report.worst_difference:.2%}\n\n"
    ) + "\n".join(map(str, shown))


def _layers(report: Rehearsal) -> str:
    rows = [["layer", "activation", "lost", "gradient", "lost", "error", "weights", "then"]]
    forms = "{} {:.2g} {:.2%} {:.2g} {:.2%} {:.2%} {:.2%} {:.2%}".split()
    rows += [[*map(str.format, forms, dataclasses.astuple(layer))] for layer in report.layers]
    return columns(rows) + (
        "\nactivation, gradient: the largest number rounded to float16 in the forward and backward "
        "pass, divided by 65504 (above 1 overflows);\nlost: share of these numbers that become "
        "zero; error: relative error of the weights' gradients, worst step;\nweights: share of the "
        "weights' gradients that become zero; then: the same at the suggested loss scale"
    )


def _scale(report: Rehearsal) -> str:
    if report.finding is not None:
        return "no loss scale prevents an overflow of the forward pass"
    return (
        f"suggested constant loss scale: {report.suggested_loss_scale:g} (now "
        f"{report.loss_scale:g}): the largest power of two that stays a factor of 8 below 65504"
    )
