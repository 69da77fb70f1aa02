"""Rehearses mixed-precision training on a CPU beside float32 training, on the same batches.

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
from amp_xla.diagnose.rehearsal_report import LayerHealth, Lost, Rehearsal, Step
from amp_xla.errors import AmpXlaError
from amp_xla.graph import training_graph

HEADROOM = 8.0  # from the largest gradient seen to float16's largest number, for other batches
HIGHEST_SCALE = 2.0**40  # far below float32's limit, so that the scaled loss has room
EXAMINED = 4  # number of examined steps
_NAMED_LOSS = 0.01  # share of a tensor's elements that must be lost to name it


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
        return _Rehearsing(training, replay, values).run(batches, steps, say)
    finally:
        replay.close()


class _Rehearsing:
    """Collects the results of the steps."""

    def __init__(
        self,
        training: training_graph.TrainingGraph,
        replay: PairedReplay,
        values: Mapping[str, Any],
    ) -> None:
        self._training, self._replay, self._values = training, replay, values
        self._origins = NodeOrigins(training)
        self._steps: List[Step] = []
        self._histograms: Dict[Tensor, Magnitudes] = {}
        self._compared: List[Any] = []  # as ``PairedReplay.examine``
        self._finding: Optional[Finding] = None
        self._scale = 1.0
        self._examined: Tuple[Any, int] = ((), 0)  # batch and number of the last examined step

    def run(self, batches: Iterable[Any], steps: int, say: Callable[[Step], None]) -> Rehearsal:
        examined = {round(i * (steps - 1) / max(EXAMINED - 1, 1)) for i in range(EXAMINED)}
        for number, batch in zip(range(steps), batches):
            self._scale = self._replay.loss_scale(batch, number)
            if number in examined:
                self._examine(batch, number)
            self._step(batch, number)
            say(self._steps[-1])
            if not self._steps[-1].finite:
                break  # from here on the two would train differently
        if not self._steps:
            raise AmpXlaError(f"steps={steps}: at least one step and one batch are needed")
        suggested, compared_then = self._try_suggested()
        rewritten = self._replay.rewritten
        return Rehearsal(
            tensorflow=backend.tensorflow().__version__,
            gpu=rewritten.capability,
            lists=rewritten.lists_name,
            steps=self._steps,
            layers=self._layers(compared_then),
            loss_scale=self._scale,
            suggested_loss_scale=suggested,
            lost=self._lost(),
            finding=self._finding,
        )

    def _step(self, batch: Any, number: int) -> None:
        replay, weights = self._replay, self._replay.weights()
        float32_loss, _ = replay.train("fp32", batch, number)
        half_loss, finite = replay.train("amp", batch, number)
        if not self._training.finite:
            # Nothing is skipped, so a gradient that is not finite shows in the weights.
            finite = finite and all(np.isfinite(w).all() for w in replay.weights().values())
        self._steps.append(Step(number, float32_loss, half_loss, self._scale, finite))
        if not finite:
            values = {**self._values, **weights}
            self._finding = overflow.replay(
                self._training, replay.rewritten, values, batch, number, self._scale
            )

    def _examine(self, batch: Any, number: int) -> None:
        self._compared.append(self._replay.examine(batch, number))
        for tensor, histogram in self._replay.histograms.items():
            self._histograms.setdefault(tensor, Magnitudes()).merge(histogram)
        self._examined = batch, number

    def _try_suggested(self) -> Tuple[float, Any]:
        """Examine the last examined step again with the suggested loss scale."""
        backward = [
            histogram.largest
            for (name, _), histogram in self._histograms.items()
            if self._origins.of(name).phase == "backward"
        ]
        largest = max([*backward, 2.0**-126])
        scale = min(self._scale * LARGEST / largest / HEADROOM, HIGHEST_SCALE)
        scale = 2.0 ** math.floor(math.log2(scale))
        for _ in range(8):
            compared = self._replay.examine(*self._examined, seed=scale / self._scale)
            if np.isfinite(compared[:, 0]).all():
                break
            scale /= 2.0  # a tensor that is not recorded overflowed, e.g. a float32 product
        return scale, compared

    def _layers(self, compared_then: Any) -> List[LayerHealth]:
        layers: Dict[str, LayerHealth] = {}

        def health(layer: str) -> LayerHealth:
            return layers.setdefault(layer, LayerHealth(layer))

        merged: Dict[Tuple[str, str], Magnitudes] = {}
        for (name, _), histogram in self._histograms.items():
            merged.setdefault(self._origins.of(name), Magnitudes()).merge(histogram)
        for (layer, phase), histogram in merged.items():
            if phase == "forward":
                health(layer).largest_activation = histogram.largest / LARGEST
                health(layer).activations_lost = histogram.share_lost
            else:
                health(layer).largest_gradient = histogram.largest / LARGEST
                health(layer).backward_lost = histogram.share_lost
        for compared in self._compared:
            for layer, (error, lost) in self._by_layer(compared).items():
                error = math.inf if math.isnan(error) else error
                health(layer).gradient_error = max(health(layer).gradient_error, error)
                health(layer).gradients_lost = max(health(layer).gradients_lost, lost)
        for layer, (_, lost) in self._by_layer(compared_then).items():
            health(layer).gradients_lost_then = lost
        positions = self._origins.layer_positions()
        return sorted(layers.values(), key=lambda h: positions.get(h.layer, len(positions)))

    def _by_layer(self, compared: Any) -> Dict[str, Tuple[float, float]]:
        """Return layer -> (relative error, share lost) of all its weights together."""
        sums: Dict[str, Any] = {}
        for (variable, _), row in zip(self._training.gradients, compared):
            layer = self._origins.of(variable).layer
            sums[layer] = sums.get(layer, 0.0) + row
        return {
            layer: (math.sqrt(error / norm) if norm else 0.0, lost / max(elements, 1.0))
            for layer, (error, norm, elements, lost) in sums.items()
        }

    def _lost(self) -> List[Lost]:
        lost = []
        for tensor, histogram in self._histograms.items():
            if histogram.share_lost < _NAMED_LOSS:
                continue
            name, origin = tensor[0], self._origins.of(tensor[0])
            lost.append(
                Lost(
                    name,
                    self._replay.graph.get_operation_by_name(f"amp/{name}").type,
                    origin.layer,
                    origin.phase,
                    histogram.share_lost,
                    self._replay.histograms[tensor].share_lost,  # of the suggested scale
                    histogram.largest,
                    self._origins.source(name),
                )
            )
        return sorted(lost, key=lambda e: (e.phase != "forward", self._origins.position(e.node)))
