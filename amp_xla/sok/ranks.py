"""Ranks that share tables and exchange their rows, through Horovod; or a single process.

Each id and its vector are sent once per rank and step. Gradients are summed in float32 before they
are sent, and each rank updates its rows. By default sums are divided by the number of ranks. This
gives the gradient of the mean loss over ranks, like the averaged gradients of other variables.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.precision.agreement import joined, start_horovod
from amp_xla.process.world import world

tf: Any = backend.tensorflow()


def Init(global_batch_size: Optional[int] = None, **_: Any) -> Any:  # SparseOperationKit's name
    """Join the ranks that a launcher started. Call it before a layer is created.

    Args:
      global_batch_size: samples per step, over all ranks; a multiple of the number of ranks.
      **_: SparseOperationKit's other arguments (visible devices), which are ignored.

    Returns:
      The number of ranks. In graph mode it is a tensor, because scripts for TensorFlow 1.15 run
      the result in a session.

    Raises:
      AmpXlaError: the batch is no multiple of the number of ranks, or Horovod cannot join them.
    """
    if world().size > 1:
        start_horovod(world())
    size = place()[1]
    if global_batch_size is not None and (global_batch_size < 1 or global_batch_size % size):
        raise AmpXlaError(
            f"global_batch_size is {global_batch_size}; allowed: a multiple of the {size} ranks"
        )
    return size if tf.executing_eagerly() else tf.constant(size)


def place() -> Tuple[int, int]:
    """Return the global rank and the number of ranks.

    Raises:
      AmpXlaError: several ranks were started, and ``Init`` was not called.
    """
    module = joined()
    if module is None and world().size > 1:
        raise AmpXlaError(
            f"{world().size} ranks were started: call sok.Init before creating a layer"
        )
    return (0, 1) if module is None else (module.rank(), module.size())


def rows_of(table: Any, ids: Any, name: str, averaged: bool = True) -> Any:
    """Return the vectors of ``ids``; each comes from the rank that has its row of the table.

    Args:
      table: float32 variable [rows of this rank, width].
      ids: row numbers in the whole table, int64 [N]; the vectors are float32 [N, width].
      name: name of the table, the same on all ranks; a step has one lookup per name.
      averaged: True = gradients are the mean over ranks, False = their sum.
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
    """Return ``values[index]``; the gradient of ``values`` is dense, so that ranks can exchange it.

    This gradient is divided by ``divisor``.
    """

    @tf.custom_gradient
    def pick(values: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            total = tf.math.unsorted_segment_sum(upstream, index, tf.shape(values)[0])
            return total if divisor == 1 else total / divisor

        return tf.gather(values, index), gradient

    return pick(values)
