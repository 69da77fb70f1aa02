"""A moving average of the weights in slots of the optimizer."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Sequence, Type

from amp_xla.backend import K, tf

SLOT = "average"


def averaged(rule: Type[Any], decay: float) -> Type[Any]:
    """Return a subclass of a ``tf.train`` optimizer class with an exponential moving average.

    After each applied update of a variable w, its slot ``average`` becomes
    ``decay * average + (1 - decay) * w``, starting from 0. ``Average`` corrects the bias as Adam
    does, so the initial weights have no influence.

    Args:
      rule: ``AdamW``, ``LAMB`` or another class with slots.
      decay: between 0 and 1; 0.999 averages about the last 1,000 updates.

    Raises:
      ValueError: ``decay`` is out of range.
    """
    if not 0.0 < decay < 1.0:
        raise ValueError(f"the decay of a moving average is between 0 and 1, not {decay}")

    class Averaged(rule):
        def _create_slots(self, var_list: Sequence[Any]) -> None:
            super()._create_slots(var_list)
            for var in var_list:
                self._zeros_slot(var, SLOT, self._name)

        def _finish(self, update_ops: List[Any], name_scope: str) -> Any:
            with tf.control_dependencies(update_ops):
                moves = []
                for var in self._averaged_variables:
                    slot = self.get_slot(var, SLOT)
                    step = (1.0 - decay) * (slot.read_value() - var.read_value())
                    moves.append(slot.assign_sub(step, read_value=False))
            return super()._finish(list(update_ops) + moves, name_scope)

        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            self._averaged_variables = [v for g, v in pairs if g is not None]
            return super().apply_gradients(pairs, *args, **kwargs)

    Averaged.__name__ = f"Averaged{rule.__name__}"
    return Averaged


class Average:
    """The averages of a built optimizer.

    Args:
      optimizer: of a class from ``averaged``, with its update built.
      variables: trained variables.
      applied_steps: int64 variable, number of applied updates.
      decay: as for ``averaged``.
    """

    def __init__(
        self, optimizer: Any, variables: Sequence[Any], applied_steps: Any, decay: float
    ) -> None:
        slots = [(v, optimizer.get_slot(v, SLOT)) for v in variables]
        self._pairs = [(v, slot) for v, slot in slots if slot is not None]
        self._applied, self._decay = applied_steps, decay

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the variables by their averages, and restore them at the end bit for bit.

        Before the first update there is no average, and nothing changes.
        """
        applied = int(K.get_value(self._applied))
        if not applied:
            yield
            return
        variables = [variable for variable, _ in self._pairs]
        weights = K.batch_get_value(variables)
        sums = K.batch_get_value([slot for _, slot in self._pairs])
        share = 1.0 - self._decay**applied
        try:  # a signal may interrupt here, with half of the variables set
            K.batch_set_value([(v, total / share) for v, total in zip(variables, sums)])
            yield
        finally:
            K.batch_set_value(list(zip(variables, weights)))

    def used_by(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with the averages in place of the variables."""

        def inside(*args: Any, **kwargs: Any) -> Any:
            with self.in_place():
                return function(*args, **kwargs)

        return inside
