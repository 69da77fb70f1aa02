"""Rehearses mixed-precision training on a CPU, next to float32 training on the same batches.

Every step trains both copies. A few steps are examined: gradients are compared at the same
weights, and the magnitudes of all numbers that are rounded to half are counted.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.diagnose.constants import LARGEST
from amp_xla.diagnose.finding import Finding
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.diagnose.paired_replay import PairedReplay
from amp_xla.diagnose.recorder import Magnitudes, Tensor
from amp_xla.diagnose.rehearsal_report import LayerHealth, Rehearsal, Step
from amp_xla.errors import AmpXlaError
from amp_xla.graph import training_graph

HEADROOM = 8.0  # from the largest gradient seen to float16's largest number, for other batches
HIGHEST_SCALE = 2.0**40  # far below float32's limit, so that the scaled loss has room
EXAMINED = 4  # number of examined steps


def rehearse(
    model: Any,
    batches: Iterable[Sequence[Any]],
    steps: int = 20,
    gpu: str = "8.0",
    lists: Optional[str] = None,
    say: Callable[[Step], None] = lambda step: None,
) -> Rehearsal:
    """Train a float32 copy and a mixed-precision copy of the model on a CPU, side by side.

    The model itself is not trained. Half precision is modelled as tensor cores compute it: half
    inputs and results, float32 in between.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``; its weights initialised.
      batches: one batch per step, as for ``inspect``.
      steps: number of steps; ends early if mixed precision is not finite.
      gpu, lists: as for ``inspect``.
      say: called with each finished step.

    Returns:
      The report; ``print`` it for tables.

    Raises:
      PassFailedError, UnsupportedError: as for ``inspect``.
    """
    training = training_graph.view(model)
    values = training.values(training_graph.session_of(training.graph))
    replay = PairedReplay(training, gpu, lists)
    try:
        for copy in ("fp32", "amp"):
            replay.load(copy, values)
        return _rehearsed(replay, values, batches, steps, say)
    finally:
        replay.close()


def _rehearsed(
    replay: PairedReplay,
    values: Mapping[str, Any],
    batches: Iterable[Any],
    steps: int,
    say: Callable[[Step], None],
) -> Rehearsal:
    training, origins = replay.training, NodeOrigins(replay.training)
    done: List[Step] = []
    histograms: Dict[Tensor, Magnitudes] = {}
    compared: List[Any] = []  # as ``PairedReplay.examine``
    examined: Tuple[Any, int] = ((), 0)  # batch and number of the last examined step
    finding: Optional[Finding] = None
    numbers = {round(i * (steps - 1) / max(EXAMINED - 1, 1)) for i in range(EXAMINED)}
    for number, batch in zip(range(steps), batches):
        scale, weights = replay.loss_scale(batch, number), replay.weights()
        if number in numbers:
            examined = batch, number
            compared.append(replay.examine(*examined))
            for tensor, histogram in replay.histograms.items():
                histograms.setdefault(tensor, Magnitudes()).merge(histogram)
        float32_loss, _ = replay.train("fp32", batch, number)
        half_loss, finite = replay.train("amp", batch, number)
        if not training.finite:
            # Nothing is skipped, so a gradient that is not finite shows in the weights.
            finite = finite and all(np.isfinite(w).all() for w in replay.weights().values())
        done.append(Step(number, float32_loss, half_loss, scale, finite))
        say(done[-1])
        if not finite:  # from here on the two would train differently
            finding = overflow.replay(
                training, replay.rewritten, {**values, **weights}, batch, number, scale
            )
            break
    if not done:
        raise AmpXlaError(f"steps={steps}: at least one step and one batch are needed")
    scale = done[-1].loss_scale
    suggested = _suggested_scale(origins, histograms, scale)
    for _ in range(8):
        rescaled = replay.examine(*examined, seed=suggested / scale)
        if np.isfinite(rescaled[:, 0]).all():
            break
        suggested /= 2.0  # a tensor that is not recorded overflowed, e.g. a float32 product
    return Rehearsal(
        tensorflow=backend.tensorflow().__version__,
        gpu=replay.rewritten.capability,
        lists=replay.rewritten.lists_name,
        steps=done,
        layers=_layers(training, origins, histograms, compared, rescaled),
        loss_scale=scale,
        suggested_loss_scale=suggested,
        finding=finding,
    )


def _suggested_scale(
    origins: NodeOrigins, histograms: Mapping[Tensor, Magnitudes], scale: float
) -> float:
    backward = [h.largest for (n, _), h in histograms.items() if origins.of(n).phase == "backward"]
    largest = max([*backward, 2.0**-126])
    return 2.0 ** math.floor(math.log2(min(scale * LARGEST / largest / HEADROOM, HIGHEST_SCALE)))


def _layers(
    training: training_graph.TrainingGraph,
    origins: NodeOrigins,
    histograms: Mapping[Tensor, Magnitudes],
    compared: Sequence[Any],
    compared_then: Any,
) -> List[LayerHealth]:
    layers: Dict[str, LayerHealth] = {}

    def health(layer: str) -> LayerHealth:
        return layers.setdefault(layer, LayerHealth(layer))

    def by_layer(rows: Any) -> Iterable[Tuple[LayerHealth, float, float]]:
        """Yield layer, relative error and share lost of all its weights together."""
        sums: Dict[str, Any] = {}
        for (variable, _), row in zip(training.gradients, rows):
            layer = origins.of(variable).layer
            sums[layer] = sums.get(layer, 0.0) + row
        for layer, (error, norm, elements, lost) in sums.items():
            relative = math.sqrt(error / norm) if norm else 0.0
            yield health(layer), relative, lost / max(elements, 1.0)

    merged: Dict[Tuple[str, str], Magnitudes] = {}
    for (name, _), histogram in histograms.items():
        merged.setdefault(origins.of(name), Magnitudes()).merge(histogram)
    for (layer, phase), histogram in merged.items():
        if phase == "forward":
            health(layer).largest_activation = histogram.largest / LARGEST
            health(layer).activations_lost = histogram.share_lost
        else:
            health(layer).largest_gradient = histogram.largest / LARGEST
            health(layer).backward_lost = histogram.share_lost
    for rows in compared:
        for entry, error, lost in by_layer(rows):
            error = math.inf if math.isnan(error) else error
            entry.gradient_error = max(entry.gradient_error, error)
            entry.gradients_lost = max(entry.gradients_lost, lost)
    for entry, _, lost in by_layer(compared_then):
        entry.gradients_lost_then = lost
    positions = origins.layer_positions()
    return sorted(layers.values(), key=lambda h: positions.get(h.layer, len(positions)))
