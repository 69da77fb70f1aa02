"""What a rehearsal found: values, JSON, text for a terminal, and a histogram as a picture."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from amp_xla.diagnose import finding
from amp_xla.diagnose.inspection_report import columns, jsonable

_NAMED = 5
_SHOWN_STEPS = 10


class Step(NamedTuple):
    """One step of both copies; ``finite``: mixed precision had no NaN and no infinity."""

    step: int
    float32_loss: float
    half_loss: float
    loss_scale: float
    finite: bool

    @property
    def difference(self) -> float:
        """Of the losses, relative to float32's."""
        return abs(self.half_loss - self.float32_loss) / max(abs(self.float32_loss), 1e-12)


@dataclasses.dataclass
class LayerHealth:
    """One Keras layer, over all examined steps.

    Attributes:
      layer: its name.
      largest_activation: of what is rounded to half in the forward pass, over 65504; above 1 it
        overflows.
      activations_lost: share of these numbers that half precision makes zero.
      largest_gradient: as ``largest_activation``, in the backward pass at the loss scale in force.
      backward_lost: as ``activations_lost``, in the backward pass.
      gradient_error: norm of the error of its weights' gradients over their norm, the worst step.
      gradients_lost: share of its weights' gradients that are zero in mixed precision though not
        in float32.
      gradients_lost_then, backward_lost_then: the same at the suggested loss scale.
    """

    layer: str
    largest_activation: float = 0.0
    activations_lost: float = 0.0
    largest_gradient: float = 0.0
    backward_lost: float = 0.0
    gradient_error: float = 0.0
    gradients_lost: float = 0.0
    gradients_lost_then: float = 0.0
    backward_lost_then: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lost:
    """A tensor of which half precision makes numbers zero.

    ``share`` of its non-zero elements are lost, the largest element being ``largest``; ``then``:
    the share at the suggested loss scale.
    """

    node: str
    op: str
    layer: str
    phase: str
    share: float
    then: float
    largest: float
    source: str


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """See ``amp_xla.diagnose.rehearse``; ``rehearsal.json`` is its fields.

    Attributes:
      tensorflow, gpu, lists, exact: what it was made with.
      steps: losses side by side.
      layers: in the order of the model.
      loss_scale: in force at the end. suggested_loss_scale: the largest power of two that leaves
        a factor of 8 to the largest number in the backward pass.
      lost: tensors that lose numbers, those of the forward pass first, in execution order.
      finding: the first non-finite node where mixed precision met one.
      activations, gradients: exponent -> how many numbers rounded to half had it (forward,
        backward at ``loss_scale``); 2**exponent is their magnitude, rounded down.
      seconds: means, of the training steps ``float32`` and ``amp``, and of rehearsed steps all in
        all, ``plain`` ones and ``examined`` ones.
    """

    tensorflow: str
    gpu: str
    lists: str
    exact: bool
    steps: Sequence[Step]
    layers: Sequence[LayerHealth]
    loss_scale: float
    suggested_loss_scale: float
    lost: Sequence[Lost]
    finding: Optional[finding.Finding]
    activations: Mapping[int, int]
    gradients: Mapping[int, int]
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        return text(self)

    @property
    def worst_difference(self) -> float:
        """Of the losses, relative; infinite where mixed precision was not finite."""
        found = [step.difference if step.finite else math.inf for step in self.steps]
        return max(found) if found else 0.0

    def to_json(self) -> Dict[str, Any]:
        """The content of rehearsal.json."""
        found = {**vars(self), "layers": [vars(layer) for layer in self.layers]}
        found["steps"] = [step._asdict() for step in self.steps]
        found["lost"] = [vars(entry) for entry in self.lost]
        found["finding"] = None if self.finding is None else self.finding.to_json()
        return jsonable(found)


def text(found: Rehearsal) -> str:
    """Losses side by side, layers, what is lost, the suggested scale."""
    parts = [_losses(found), _layers(found), _lost(found), _scale(found)]
    if found.finding is not None:
        parts.append(str(found.finding))
    return "\n\n".join(part for part in parts if part)


def step_line(step: Step) -> str:
    """One step, while it goes on."""
    number, float32, half, scale, finite = step
    return (
        f"step {number}: loss float32 {float32:.6g}, amp {half:.6g}, scale {scale:g}"
        f"{'' if finite else '; amp is NOT FINITE'}"
    )


def _losses(found: Rehearsal) -> str:
    steps = found.steps
    seconds = found.seconds
    how = "Eigen's half kernels" if found.exact else "the tensor-core model"
    lines = [
        f"TensorFlow {found.tensorflow}, {found.lists} lists, a virtual GPU {found.gpu}, {how}; "
        f"{len(steps)} steps",
        f"worst difference of the losses: {found.worst_difference:.2%}",
        f"a step took {seconds['float32']:.3g} s in float32, {seconds['amp']:.3g} s in mixed "
        f"precision; rehearsed {seconds['plain']:.3g} s, examined {seconds['examined']:.3g} s",
    ]
    every = max(1, -(-len(steps) // _SHOWN_STEPS))
    shown = [s for s in steps if s.step % every == 0 or s is steps[-1]]
    rows = [("step", "float32", "amp", "difference", "scale")]
    for step in shown:
        difference = f"{step.difference:.4%}" if step.finite else "not finite"
        rows.append(
            (
                str(step.step),
                f"{step.float32_loss:.6g}",
                f"{step.half_loss:.6g}",
                difference,
                f"{step.loss_scale:g}",
            )
        )
    return "\n".join(lines) + "\n\n" + columns(rows)


def _layers(found: Rehearsal) -> str:
    header = ["layer", "activation", "lost", "gradient", "lost", "error", "weights", "then"]
    rows = [header, *([layer.layer, *_cells(layer)] for layer in found.layers)]
    return columns(rows) + (
        "\nactivation, gradient: the largest number rounded to float16 in the forward and backward "
        "pass, over 65504 (above 1 overflows);\nlost: share of them that becomes zero; error: of "
        "its weights' gradients against float32, relative, worst step;\nweights: share of its "
        "weights' gradients that becomes zero; then: the same at the suggested loss scale"
    )


def _cells(layer: LayerHealth) -> List[str]:
    return [
        f"{layer.largest_activation:.2g}",
        f"{layer.activations_lost:.2%}",
        f"{layer.largest_gradient:.2g}",
        f"{layer.backward_lost:.2%}",
        f"{layer.gradient_error:.2%}",
        f"{layer.gradients_lost:.2%}",
        f"{layer.gradients_lost_then:.2%}",
    ]


def _lost(found: Rehearsal) -> str:
    lines = []
    for phase in ("forward", "backward"):
        entries = [entry for entry in found.lost if entry.phase == phase]
        if not entries:
            continue
        lines.append(f"Numbers that become zero in float16, {phase} pass: {len(entries)} tensors")
        worst = sorted(entries, key=lambda entry: -entry.share)[:_NAMED]
        for entry in [e for e in entries if e in worst]:
            then = f", {entry.then:.1%} at the suggested scale" if phase == "backward" else ""
            lines.append(
                f"  {entry.node} ({entry.op}, layer {entry.layer}): {entry.share:.1%} of its "
                f"numbers{then}; largest {entry.largest:.2g}"
            )
            if entry.source:
                lines.append(f"    {entry.source}")
    return "\n".join(lines)


def _scale(found: Rehearsal) -> str:
    if found.finding is not None and found.finding.phase == "forward":
        return "no loss scale mends an overflow of the forward pass"
    return (
        f"suggested constant loss scale: {found.suggested_loss_scale:g} (now "
        f"{found.loss_scale:g}): the largest power of two that leaves a factor of 8 to 65504"
    )


def picture(found: Rehearsal, path: Path) -> None:
    """Histograms of what is rounded to half, and where float16 ends, as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    # Same rehearsal, same file: no dates, no random ids.
    matplotlib.rcParams["svg.hashsalt"] = "amp_xla"
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 6), sharex=True)
    shift = found.suggested_loss_scale / found.loss_scale
    _panel(above, found.activations, "forward pass", "#3b6ea5")
    _panel(below, found.gradients, f"backward pass, loss scale {found.loss_scale:g}", "#3b6ea5")
    if found.gradients and shift != 1.0:
        total = sum(found.gradients.values())
        offset = round(math.log2(shift))
        xs = [exponent + offset for exponent in sorted(found.gradients)]
        ys = [found.gradients[exponent] / total for exponent in sorted(found.gradients)]
        label = f"at the suggested scale {found.suggested_loss_scale:g}"
        below.step(xs, ys, where="mid", color="#444444", linewidth=1, label=label)
        below.legend(fontsize=7, loc="upper right")
    below.set_xlabel("binary exponent of the number; shaded: float16 makes it zero, or infinite")
    figure.suptitle("numbers that mixed precision rounds to float16", fontsize=10)
    figure.tight_layout()
    figure.savefig(str(path), metadata={"Date": None})
    pyplot.close(figure)


def _panel(axes: Any, counts: Mapping[int, int], title: str, color: str) -> None:
    total = max(1, sum(counts.values()))
    axes.bar(list(counts), [n / total for n in counts.values()], width=1.0, color=color)
    low, high = axes.get_xlim()
    low, high = min(low, -30.0), max(high, 18.0)
    axes.axvspan(low, -25.5, color="#a53b3b", alpha=0.15)
    axes.axvspan(15.5, high, color="#a53b3b", alpha=0.15)
    axes.set_xlim(low, high)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel("share of the numbers")
