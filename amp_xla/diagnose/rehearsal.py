"""Rehearses mixed-precision training on a CPU, next to float32 training on the same batches.

Every step trains both copies. A few steps are examined: gradients are compared at the same
weights, and the ranges of all tensors that are rounded to half are recorded.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.diagnose import overflow
from amp_xla.diagnose.finding import Finding
from amp_xla.diagnose.graph_copies import LARGEST, PairedReplay, Range
from amp_xla.diagnose.node_origins import NodeOrigins, Origin
from amp_xla.diagnose.rehearsal_report import LayerHealth, Rehearsal, Step
from amp_xla.errors import AmpXlaError
from amp_xla.graph import training_graph

HEADROOM = 8.0  # factor between the largest gradient and float16's limit, for other batches
HIGHEST_SCALE = 2.0**40  # far below float32's limit, so that the scaled loss has room
EXAMINED = 4  # number of examined steps


def rehearse(
    model: Any,
    batches: Iterable[Sequence[Any]],
    steps: int = 20,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Rehearsal:
    """Train a float32 copy and a mixed-precision copy of the model on a CPU, side by side.

    The model itself is not trained. Half precision is modelled as tensor cores compute it: half
    inputs and results, float32 in between.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``; its weights initialized.
      batches: one batch per step, as for ``inspect``.
      steps: number of steps; ends early if mixed precision is not finite.
      on_step: called with each finished step.

    Returns:
      The report; ``print`` it for tables.

    Raises:
      PassFailedError, UnsupportedError: as for ``inspect``.
    """
    training = training_graph.view(model)
    values = training.values()
    with PairedReplay(training) as replay:
        for copy in ("fp32", "amp"):
            replay.load(copy, values)
        return _rehearsed(replay, values, batches, steps, on_step)


def _rehearsed(
    replay: PairedReplay,
    values: Mapping[str, Any],
    batches: Iterable[Any],
    steps: int,
    on_step: Callable[[Step], None],
) -> Rehearsal:
    training, origins = replay.training, NodeOrigins(replay.training)
    done: List[Step] = []
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
        done.append(Step(number, float32_loss, half_loss, scale, finite))
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
    largest = max([2.0**-126, *(health.largest_gradient * LARGEST for health in layers.values())])
    suggested = min(scale * LARGEST / largest / HEADROOM, HIGHEST_SCALE)
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
        for comparison in compared:
            error, lost = _errors(comparison[rows])
            health.gradient_error = max(health.gradient_error, error)
            health.gradients_lost = max(health.gradients_lost, lost)
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
    """Return layer -> health, with the fields for activations and the backward pass."""
    layers: Dict[str, LayerHealth] = {}
    records: Dict[Origin, List[Range]] = {}
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
    """Return the relative error and the lost share of several gradients together."""
    error, norm, elements, lost = rows.sum(0)
    relative = math.sqrt(error / norm) if norm else 0.0
    return math.inf if math.isnan(relative) else relative, lost / max(elements, 1.0)
