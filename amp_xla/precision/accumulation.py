"""Gradient accumulation: a window of micro-batches is one step, with one finite check.

Sums are reset by assignment. (bert4keras multiplies them by 0: after one infinite micro-batch they
are NaN forever.) Between updates the sums are zero, so checkpoints do not contain them.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from amp_xla.precision import arrays
from amp_xla.precision.inner import Pairs
from amp_xla.precision.loss_scale import whole_number
from amp_xla.precision.tensorflow import state_variable, tf


class Window:
    """Sums of unscaled float32 gradients over micro-batches, in variables.

    Sparse gradients are summed in dense variables with the shape of the trained variable.

    Args:
      steps: micro-batches per update.
      name: prefix of variable names.
    """

    def __init__(self, steps: int, name: str) -> None:
        self.steps = whole_number("accumulate", steps, 1, "micro-batches")
        self._prefix = name
        self._sums: Dict[int, Tuple[Any, Any]] = {}  # id of a variable -> it and its sum
        self.micro_step = state_variable(0, tf.int64, name + "/micro_step")

    @property
    def state_variables(self) -> List[Any]:
        """The micro-batch count (int64) and the sums built so far: all zero between updates."""
        return [self.micro_step, *(total for _, total in self._sums.values())]

    def add(self, pairs: Pairs, at_end: Callable[[Pairs], Any]) -> Any:
        """Add one micro-batch; at the end of a window use the means and reset the sums.

        Args:
          pairs: unscaled gradients of this micro-batch.
          at_end: function from pairs (mean gradient, variable) to (finite, norm), called by the
            last micro-batch of a window. The others return (True, 0).
        """
        totals = [self._sum_of(v) for _, v in pairs]
        added = [_add(total, g) for total, (g, _) in zip(totals, pairs)]
        with tf.control_dependencies([op for op in added if op is not None]):
            count = self.micro_step.read_value() + 1

        def end() -> Any:
            means = [total.read_value() / float(self.steps) for total in totals]
            result = at_end([(mean, v) for mean, (_, v) in zip(means, pairs)])
            with tf.control_dependencies(tf.nest.flatten(result)):
                empty = [total.assign(tf.zeros_like(total)) for total in totals]
                empty.append(self.micro_step.assign(0))
            return _wait(empty, result)

        def go_on() -> Any:
            return _wait([self.micro_step.assign(count)], (tf.constant(True), tf.constant(0.0)))

        return tf.cond(count >= self.steps, end, go_on)

    def _sum_of(self, variable: Any) -> Any:
        if id(variable) not in self._sums:
            with tf.init_scope():
                label = variable.name.partition(":")[0].replace("/", "_")
                start = tf.zeros(variable.shape, tf.float32)
                total = state_variable(start, tf.float32, f"{self._prefix}/sum_{label}")
            self._sums[id(variable)] = (variable, total)
        return self._sums[id(variable)][1]


def _add(total: Any, gradient: Any) -> Any:
    if arrays.is_sparse(gradient):
        return total.scatter_add(arrays.map_floats(lambda x: tf.cast(x, tf.float32), gradient))
    return total.assign_add(tf.cast(gradient, tf.float32), read_value=False)


def _wait(operations: List[Any], result: Any) -> Any:
    with tf.control_dependencies([op for op in operations if op is not None]):
        return tf.nest.map_structure(tf.identity, result)
