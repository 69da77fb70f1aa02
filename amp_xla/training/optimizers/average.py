"""A moving average of the weights, which the optimizer keeps in slots.

The slot of the weight ``w`` is the variable ``w/average``, so a checkpoint holds the average under
this name (``amp_xla.training.step.restore_weights`` reads it).
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Sequence, Type

from amp_xla.backend import K, tf

SLOT = "average"  # slot of each weight
POWER = "average_power"  # variable: decay**t for the next update t


def averaged(rule: Type[Any], decay: float) -> Type[Any]:
    """Return a subclass of a ``tf.train`` optimizer class that averages the weights.

    After update t of a variable w, its slot ``average`` moves towards w by the share
    ``(1 - decay) / (1 - decay**t)``: an exponential average, float32, over the updated weights
    alone. The initial weights have no influence, and a skipped step does not move it. A decay of
    0.999 averages about the last 1,000 updates; 0 = no average: the result is ``rule`` itself.
    """
    if not decay:
        return rule

    class Averaged(rule):
        def _create_slots(self, var_list: Sequence[Any]) -> None:
            super()._create_slots(var_list)
            first = min(var_list, key=lambda var: var.name)
            self._create_non_slot_variable(decay, POWER, colocate_with=first)
            for var in var_list:
                self._zeros_slot(var, SLOT, SLOT)

        def _finish(self, update_ops: List[Any], name_scope: str) -> Any:
            with tf.init_scope():  # the update is built in the graph of a branch
                power = self._get_non_slot_variable(POWER, graph=tf.get_default_graph())
            with tf.control_dependencies(update_ops):
                # In float32 like the power, so that the first share is exactly 1.
                share = (1.0 - tf.constant(decay, tf.float32)) / (1.0 - power.read_value())
                moves = []
                for var in self._averaged_variables:
                    slot = self.get_slot(var, SLOT)
                    step = share * (slot.read_value() - var.read_value())
                    moves.append(slot.assign_sub(step, read_value=False))
            with tf.control_dependencies([share]):
                moves.append(power.assign(power.read_value() * decay, read_value=False))
            return super()._finish(list(update_ops) + moves, name_scope)

        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            self._averaged_variables = [v for g, v in pairs if g is not None]
            return super().apply_gradients(pairs, *args, **kwargs)

    Averaged.__name__ = f"Averaged{rule.__name__}"
    return Averaged


@contextlib.contextmanager
def in_place(optimizer: Any, variables: Sequence[Any]) -> Iterator[None]:
    """Replace variables by their averages within the block, and restore them bit for bit.

    As a decorator, ``in_place(optimizer, variables)(function)``, it does so in each call.

    Before the first update, or without averages, the variables keep their values in the block.
    ``optimizer`` is a ``LossScaleOptimizer`` whose update is built.
    """
    pairs = [(v, optimizer.inner.get_slot(v, SLOT)) for v in variables]
    pairs = [(v, slot) for v, slot in pairs if slot is not None]
    if not pairs or not int(K.get_value(optimizer.applied_steps)):
        yield
        return
    variables = [variable for variable, _ in pairs]
    weights = K.batch_get_value(variables)
    averages = K.batch_get_value([slot for _, slot in pairs])
    try:
        K.batch_set_value(list(zip(variables, averages)))
        yield
    finally:
        K.batch_set_value(list(zip(variables, weights)))
