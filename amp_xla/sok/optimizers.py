"""Optimizers for tables: Keras' Adam, and one that updates only the rows of a batch."""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator

from amp_xla import backend
from amp_xla.errors import UnsupportedError
from amp_xla.sok import table

tf: Any = backend.tensorflow()
_legacy: Any = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)


class Adam(_legacy.Adam):
    """Keras' Adam, which updates all rows in each step, including rows that are not in the batch.

    Results equal those of Adam in one process, which has the whole table. One kernel updates all
    rows in place; Keras' implementation would need the memory of several tables.
    """

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        dense = tf.math.unsorted_segment_sum(grad, indices, var.shape[0])
        return self._resource_apply_dense(dense, var, apply_state)


class LazyAdam(_legacy.Adam):
    """Adam that updates only the rows of a batch, in time proportional to the batch.

    Unlike in Adam, moments of rows outside the batch do not decay.
    """

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        if self.amsgrad:
            raise UnsupportedError("LazyAdam has no amsgrad; allowed: amsgrad=False, or Adam")
        dtype = var.dtype.base_dtype
        state = (apply_state or {}).get((var.device, dtype)) or self._fallback_apply_state(
            var.device, dtype
        )
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = state["beta_1_t"] * tf.gather(m, indices) + state["one_minus_beta_1_t"] * grad
        v_rows = state["beta_2_t"] * tf.gather(v, indices) + state["one_minus_beta_2_t"] * grad**2
        # Keras' lr includes the bias correction.
        moved = state["lr"] * m_rows / (tf.sqrt(v_rows) + state["epsilon"])
        update = tf.raw_ops.ResourceScatterUpdate
        return tf.group(
            update(resource=m.handle, indices=indices, updates=m_rows),
            update(resource=v.handle, indices=indices, updates=v_rows),
            self._resource_scatter_add(var, indices, -moved),
        )


@contextlib.contextmanager
def OptimizerScope(trainable_variables: Iterable[Any]) -> Iterator[None]:
    """Check that variables are tables, then run the block; for SparseOperationKit's scripts.

    Raises:
      AmpXlaError: a variable is not a table.
    """
    for variable in trainable_variables:
        table.rows(variable)
    yield
