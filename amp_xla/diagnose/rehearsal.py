"""Mixed-precision training rehearsed on CPU beside float32 training, on the same batches.

Every step trains both copies. A few steps are examined: gradients compared at the same weights,
and the magnitudes of everything that is rounded to half counted.
"""

from __future__ import annotations

import math
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla.diagnose import finding
from amp_xla.diagnose.constants import LARGEST
from amp_xla.diagnose.places import OUTSIDE, Places
from amp_xla.diagnose.recorder import Magnitudes, Tensor
from amp_xla.diagnose.rehearsal_report import LayerHealth, Lost, Rehearsal, Step
from amp_xla.diagnose.twins import Compared, Twins
from amp_xla.errors import AmpXlaError
from amp_xla.graph import training_graph

HEADROOM = 8.0  # between the largest gradient seen and float16's largest number, for other batches
HIGHEST_SCALE = 2.0**40  # far below float32's limit, so that the scaled loss has room
EXAMINED = 4  # steps of a rehearsal that are looked into
_NAMED_LOSS = 0.01  # share of a tensor's elements whose loss is worth naming it
_NAMED = 10


def rehearse(
    model: Any,
    batches: Iterable[Sequence[Any]],
    steps: int = 20,
    gpu: str = "8.0",
    lists: Optional[str] = None,
    exact: bool = False,
    say: Any = None,
) -> Rehearsal:
    """See ``amp_xla.diagnose.rehearse``; ``say`` is told each ``Step`` as it ends."""
    if steps < 1:
        raise AmpXlaError(f"{steps} steps: a rehearsal has at least 1")
    training = training_graph.view(model)
    values = training.values(training_graph.session_of(training.graph))
    twins = Twins(training, gpu, lists, exact)
    try:
        twins.start(values)
        return _Rehearsing(training, twins, values, exact).run(batches, steps, say)
    finally:
        twins.close()


class _Rehearsing:
    """Collects what the steps of a rehearsal show."""

    def __init__(
        self,
        training: training_graph.TrainingGraph,
        twins: Twins,
        values: Mapping[str, Any],
        exact: bool,
    ) -> None:
        self._training, self._twins, self._values = training, twins, values
        self._exact = exact
        self._weights: Mapping[str, Any] = {}
        self._places = Places(training)
        self._steps: List[Step] = []
        self._held: Dict[Tensor, Magnitudes] = {}
        self._compared: List[List[Compared]] = []
        self._finding: Optional[finding.Finding] = None
        names = ("float32", "amp", "plain", "examined")
        self._seconds: Dict[str, List[float]] = {name: [] for name in names}
        self._scale = 1.0
        self._last: Tuple[Any, int] = ((), 0)

    def run(self, batches: Iterable[Sequence[Any]], steps: int, say: Any) -> Rehearsal:
        from amp_xla import backend

        examined = {round(i * (steps - 1) / max(EXAMINED - 1, 1)) for i in range(EXAMINED)}
        for number, arrays in zip(range(steps), batches):
            began = time.monotonic()
            self._step(arrays, number, number in examined)
            kind = "examined" if number in examined else "plain"
            self._seconds[kind].append(time.monotonic() - began)
            if say is not None:
                say(self._steps[-1])
            if not self._steps[-1].finite:
                break  # from here on the two would not be the same training
        if not self._steps:
            raise AmpXlaError("there is no batch to rehearse with")
        suggested, compared_then, held_then = self._try_suggested()
        rewritten = self._twins.rewritten
        return Rehearsal(
            tensorflow=backend.tensorflow().__version__,
            gpu=rewritten.capability,
            lists=rewritten.lists_name,
            exact=self._exact,
            steps=self._steps,
            layers=self._layers(compared_then, held_then),
            loss_scale=self._scale,
            suggested_loss_scale=suggested,
            lost=self._lost(held_then),
            finding=self._finding,
            activations=self._histogram("forward"),
            gradients=self._histogram("backward"),
            seconds={name: _typical(times) for name, times in self._seconds.items()},
        )

    def _step(self, arrays: Sequence[Any], number: int, examined: bool) -> None:
        twins = self._twins
        self._scale = twins.loss_scale(arrays, number)
        if examined:
            self._examine(arrays, number)
        before, trained = self._weights, []
        for copy, name in (("fp32", "float32"), ("amp", "amp")):
            began = time.monotonic()
            trained.append(twins.train(copy, arrays, number))
            self._seconds[name].append(time.monotonic() - began)
        plain, mixed = trained
        finite = mixed.finite
        if not self._training.finite:
            # Nothing is skipped: a gradient that is not finite shows in the weights.
            self._weights = twins.weights()
            finite = finite and all(np.isfinite(w).all() for w in self._weights.values())
        self._steps.append(Step(number, plain.loss, mixed.loss, self._scale, finite))
        if not finite:
            values = {**self._values, **(twins.weights() if self._training.finite else before)}
            self._finding = twins.find_overflow(values, arrays, number, self._scale)

    def _examine(self, arrays: Sequence[Any], number: int) -> None:
        self._compared.append(self._twins.examine(arrays, number))
        for tensor, seen in self._twins.held.items():
            self._held.setdefault(tensor, Magnitudes()).merge(seen)
        self._last = arrays, number

    def _try_suggested(self) -> Tuple[float, List[Compared], Mapping[Tensor, Magnitudes]]:
        """The suggested scale, and what the last examined step looks like with it."""
        backward = [seen for t, seen in self._held.items() if self._phase(t) == "backward"]
        largest = max([seen.largest for seen in backward] + [2.0**-126])
        scale = min(self._scale * LARGEST / largest / HEADROOM, HIGHEST_SCALE)
        scale = 2.0 ** math.floor(math.log2(scale))
        for _ in range(8):
            compared = self._twins.examine(*self._last, seed=scale / self._scale)
            held = self._twins.held
            if all(math.isfinite(entry.error) for entry in compared):
                break
            scale /= 2.0  # what is not watched (a float32 product of two scaled numbers) overflowed
        return scale, compared, held

    def _phase(self, tensor: Tensor) -> str:
        return self._places.of(tensor[0]).phase

    def _layers(
        self, compared_then: List[Compared], held_then: Mapping[Tensor, Magnitudes]
    ) -> List[LayerHealth]:
        found: Dict[str, LayerHealth] = {}
        order: Dict[str, int] = {}

        def of(layer: str) -> LayerHealth:
            return found.setdefault(layer, LayerHealth(layer))

        now, then = self._by_place(self._held), self._by_place(held_then)
        for (layer, phase), seen in now.items():
            health = of(layer)
            if phase == "forward":
                health.largest_activation = seen.largest / LARGEST
                health.activations_lost = _share(seen)
            else:
                health.largest_gradient = seen.largest / LARGEST
                health.backward_lost = _share(seen)
                health.backward_lost_then = _share(then.get((layer, phase), Magnitudes()))
        for compared in self._compared:
            for layer, (error, lost) in self._by_layer(compared).items():
                health = of(layer)
                health.gradient_error = _worse(health.gradient_error, error)
                health.gradients_lost = max(health.gradients_lost, lost)
        for layer, (_, lost) in self._by_layer(compared_then).items():
            of(layer).gradients_lost_then = lost
        for name in self._places.order:
            order.setdefault(self._places.of(name).layer, len(order))
        return sorted(
            found.values(), key=lambda h: (h.layer == OUTSIDE, order.get(h.layer, len(order)))
        )

    def _by_place(self, held: Mapping[Tensor, Magnitudes]) -> Dict[Tuple[str, str], Magnitudes]:
        found: Dict[Tuple[str, str], Magnitudes] = {}
        for tensor, seen in held.items():
            place = self._places.of(tensor[0])
            found.setdefault((place.layer, place.phase), Magnitudes()).merge(seen)
        return found

    def _by_layer(self, compared: Sequence[Compared]) -> Dict[str, Tuple[float, float]]:
        """Layer -> (relative error, share lost) over all its weights together."""
        sums: Dict[str, List[float]] = {}
        for (variable, _), entry in zip(self._training.gradients, compared):
            total = sums.setdefault(self._places.layer_of(variable), [0.0] * 4)
            for i, value in enumerate((entry.error**2, entry.norm**2, entry.elements, entry.lost)):
                total[i] += value
        return {
            layer: (math.sqrt(error / norm) if norm else 0.0, lost / max(elements, 1.0))
            for layer, (error, norm, elements, lost) in sums.items()
        }

    def _lost(self, held_then: Mapping[Tensor, Magnitudes]) -> List[Lost]:
        found = []
        for tensor, seen in self._held.items():
            if _share(seen) < _NAMED_LOSS:
                continue
            name, place = tensor[0], self._places.of(tensor[0])
            then = held_then.get(tensor, Magnitudes())
            source, node = self._places.source(name), self._twins.graph
            op = node.get_operation_by_name(f"seen/{name}").type
            found.append(
                Lost(
                    name,
                    op,
                    place.layer,
                    place.phase,
                    _share(seen),
                    _share(then),
                    seen.largest,
                    "" if source is None else str(source),
                )
            )
        order = self._places.order
        return sorted(
            found,
            key=lambda e: (e.phase != "forward", order.get(self._places.original(e.node), 1 << 60)),
        )

    def _histogram(self, phase: str) -> Dict[int, int]:
        total = Magnitudes()
        for tensor, seen in self._held.items():
            if self._phase(tensor) == phase:
                total.merge(seen)
        bins = enumerate(total.counts[1:255], 1 - Magnitudes.BIAS)
        return {exponent: int(count) for exponent, count in bins if count}


def _share(seen: Magnitudes) -> float:
    return seen.lost / seen.numbers if seen.numbers else 0.0


def _worse(a: float, b: float) -> float:
    return math.inf if b != b else max(a, b)


def _typical(seconds: Sequence[float]) -> float:
    """The mean, without the first where there are others: it sets the session up."""
    rest = seconds[1:] or seconds
    return sum(rest) / len(rest) if rest else 0.0
