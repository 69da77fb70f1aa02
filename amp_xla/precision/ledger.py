"""What happened to the gradients of the step being built: scaled, unscaled, judged, applied.

A step is one decision. Two variable groups, or two optimizers, that are unscaled in the same
step and applied one after the other share the decision and one update of the loss scale.
The ledger is Python bookkeeping at trace time; it puts nothing into the graph.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Sequence, Tuple

from amp_xla.precision.monitor import LossScaleWarning
from amp_xla.precision.tensorflow import tf


class Step:
    """One training step.

    Attributes:
      scale: the float32 read of the loss scale that the whole step uses.
      tests: boolean scalars, one per group of gradients unscaled so far.
      finite: the decision, once taken: a boolean scalar.
      applied: operations of the groups applied so far, in order; empty eagerly.
      shared: by optimizer, (variable, value before its first group) for what each of its
        ``apply_gradients`` moves on: iterations, Adam's beta powers.
    """

    def __init__(self, scale: Any) -> None:
        self.scale = scale
        self.scaled = False
        self.unscaled = False
        self.tests: List[Any] = []
        self.finite: Optional[Any] = None
        self.applied: List[Any] = []
        self.shared: Dict[Any, List[Tuple[Any, Any]]] = {}

    def remember(self, optimizers: Sequence[Any]) -> None:
        """Reads what the optimizers' first group is about to move on."""
        for inner in optimizers:
            if inner not in self.shared:
                self.shared[inner] = [(v, v.read_value()) for v in inner.shared_state]

    def reads(self) -> List[Any]:
        """Those reads, and the groups applied so far: what the next group must wait for."""
        return [value for pairs in self.shared.values() for _, value in pairs] + self.applied

    def rewind(self, optimizers: Sequence[Any]) -> List[Any]:
        """Takes back what an earlier group of this step moved on, so that it moves once a step."""
        return [
            variable.assign(value) for inner in optimizers for variable, value in self.shared[inner]
        ]


class Ledger:
    """The current step of every graph (and of eager execution)."""

    def __init__(self) -> None:
        self._eager: Dict[Any, Step] = {}
        # Tensors that came out of scaling or unscaling, to see a second time around.
        self._scaled: MutableMapping[int, Any] = weakref.WeakValueDictionary()
        self._unscaled: MutableMapping[int, Any] = weakref.WeakValueDictionary()

    def scale(self, read_scale: Callable[[], Any]) -> Any:
        """The scale of the step being built: in a v1 graph, one read that all of it shares."""
        if not in_v1_graph():
            return read_scale()
        graph = tf.get_default_graph()
        kept = _kept(graph, "_amp_xla_scales")
        key = (self, _context(graph))
        if key not in kept:
            kept[key] = read_scale()
        return kept[key]

    def step(self, read_scale: Callable[[], Any]) -> Step:
        """The open step of the current graph; opens one, reading the scale, if there is none."""
        current = self._get()
        if current is None:
            current = Step(read_scale())
            self._put(current)
        return current

    def next_step(self, read_scale: Callable[[], Any]) -> Step:
        """The open step, or a new one if the current step was already judged."""
        current = self._get()
        if current is not None and current.finite is not None:
            self._put(None)
        return self.step(read_scale)

    def close(self) -> None:
        """Forgets the step: it was scaled, judged and applied by one call."""
        self._put(None)

    def scaled(self, before: Any, after: Any) -> None:
        """Notes a scaled loss and warns if it had been scaled before."""
        if _same(self._scaled, before):
            _warn("this loss was scaled already; its gradients will be too large by the scale")
        self._scaled[id(after)] = after

    def unscaled(self, before: Any, after: Any) -> None:
        """Notes an unscaled gradient and warns if it had been unscaled before."""
        if before is not None and _same(self._unscaled, before):
            _warn("this gradient was unscaled already; it is now too small by the loss scale")
        if after is not None:
            self._unscaled[id(after)] = after

    def check_unscaled(self, step: Step) -> None:
        """Warns if a step's loss was scaled and no gradient unscaled."""
        if step.scaled and not step.unscaled:
            _warn(
                "gradients of a scaled loss are being applied and were never unscaled; pass them "
                "through get_unscaled_gradients first"
            )

    def _get(self) -> Optional[Step]:
        if tf.executing_eagerly():
            return self._eager.get(_replica())
        graph = tf.get_default_graph()
        found = _kept(graph, "_amp_xla_steps").get((self, _replica()))
        return found[1] if found is not None and found[0] is _context(graph) else None

    def _put(self, step: Optional[Step]) -> None:
        if tf.executing_eagerly():
            self._eager.pop(_replica(), None)
            if step is not None:
                self._eager[_replica()] = step
            return
        graph = tf.get_default_graph()
        steps = _kept(graph, "_amp_xla_steps")
        steps.pop((self, _replica()), None)
        if step is not None:
            steps[(self, _replica())] = (_context(graph), step)


def _replica() -> int:
    """Replicas of a strategy take turns in one process, each with a step of its own."""
    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    found = getattr(context, "replica_id_in_sync_group", 0)
    return found if isinstance(found, int) else 0


def in_v1_graph() -> bool:
    """True where tensors belong to a graph that sessions run: not eagerly, not in a function."""
    return not tf.executing_eagerly() and not tf.get_default_graph().building_function


def _kept(graph: Any, name: str) -> Dict[Any, Any]:
    """A dictionary that lives on the graph, so that it goes when the graph goes."""
    if not hasattr(graph, name):
        setattr(graph, name, {})
    return getattr(graph, name)


def _context(graph: Any) -> Any:
    """The v1 loop or branch that operations are now added to; tensors do not leave it."""
    return graph._get_control_flow_context()


def _same(known: MutableMapping[int, Any], tensor: Any) -> bool:
    return known.get(id(tensor)) is tensor


def _warn(message: str) -> None:
    warnings.warn(message, LossScaleWarning, stacklevel=4)
