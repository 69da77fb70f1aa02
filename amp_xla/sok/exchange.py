"""Exchange of table rows, and of their gradients, between ranks.

Each id and its vector are sent once per rank and step, even if many samples have the id. Gradients
are summed in float32 before they are sent, and each rank updates its rows. Averaged gradients are
this sum divided by the number of ranks: the gradients of the mean loss over the batches of all
ranks. Variables that all ranks have get the same kind of gradient.
"""

from __future__ import annotations

from typing import Any

from amp_xla import backend
from amp_xla.precision.agreement import joined

tf: Any = backend.tensorflow()


def rows_of(table: Any, ids: Any, name: str, averaged: bool = True) -> Any:
    """Return the vectors of ids, from the ranks that have them.

    Args:
      table: rows of this rank, float32 variable [rows of this rank, width].
      ids: row numbers in the whole table, int64 [N].
      name: name of the table, the same on all ranks; a step has one lookup per name.
      averaged: True = gradients are the mean over ranks, False = their sum.

    Returns:
      float32 [N, width].
    """
    unique, index = tf.unique(ids)
    module = joined()
    if module is None:
        return _picked(tf.gather(table, unique), index, 1)
    size = module.size()
    # Sorted by owner; the inverse permutation gives the position of each id.
    owner = tf.cast(unique % size, tf.int32)
    order = tf.argsort(owner, stable=True)
    counts = tf.math.bincount(owner, minlength=size, maxlength=size)
    requests, request_counts = module.alltoall(
        tf.gather(unique, order), splits=counts, name=f"{name}_ids"
    )
    vectors = tf.gather(table, requests // size)
    vectors, _ = module.alltoall(vectors, splits=request_counts, name=f"{name}_vectors")
    return _picked(vectors, tf.gather(tf.argsort(order), index), size if averaged else 1)


def _picked(values: Any, index: Any, divisor: int) -> Any:
    """Return ``values[index]``; its gradient is dense, so that ranks can exchange it.

    The gradient of ``values`` is divided by ``divisor``.
    """

    @tf.custom_gradient
    def pick(values: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            total = tf.math.unsorted_segment_sum(upstream, index, tf.shape(values)[0])
            return total if divisor == 1 else total / divisor

        return tf.gather(values, index), gradient

    return pick(values)
