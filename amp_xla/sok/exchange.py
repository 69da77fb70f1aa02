"""Rows of a table that is spread over ranks: asked for, sent, and their gradients sent back.

Every id travels once a rank and step, whatever number of samples has it, and so does its vector.
Gradients are summed in float32 before they travel; what a rank receives for its own rows it
applies itself. Where they are averaged, they are divided by the number of ranks, as gradients of
shared variables are: both are those of the mean over all ranks' batches.
"""

from __future__ import annotations

from typing import Any, Tuple

from amp_xla import backend
from amp_xla.sok import ranks

tf: Any = backend.tensorflow()


def rows_of(table: Any, ids: Any, name: str, averaged: bool = True) -> Any:
    """Vectors of ids, wherever their rows are.

    Args:
      table: this rank's rows, float32 variable [rows here, width].
      ids: int64 [N], from 0 to the whole table's height.
      name: of the table; the same on all ranks, one lookup of it a step.
      averaged: gradients are the mean over ranks, else their sum.

    Returns:
      float32 [N, width].
    """
    unique, index = tf.unique(ids)
    module = ranks.hvd()
    if module is None:
        found = tf.gather(table, unique)
        return _picked(found, index)
    size = module.size()
    # In order of owners; a sort by owner alone would not say where among them an id is.
    owner = tf.cast(unique % size, tf.int32)
    order = tf.argsort(owner, stable=True)
    counts = tf.math.bincount(owner, minlength=size, maxlength=size)
    asked, asked_counts = _exchanged(module, tf.gather(unique, order), counts, f"{name}_ids")
    here = tf.gather(table, asked // size)
    sent = _shared_gradient(here, size) if averaged else here
    found, _ = _exchanged(module, sent, asked_counts, f"{name}_vectors")
    return _picked(found, tf.gather(tf.argsort(order), index))


def _exchanged(module: Any, values: Any, counts: Any, name: str) -> Tuple[Any, Any]:
    """(what the others sent here, how many from each)."""
    found, received = module.alltoall(values, splits=counts, name=name)
    return found, received


@tf.custom_gradient
def _picked(values: Any, index: Any) -> Any:
    """``values[index]``; the gradient of a row is one sum, dense, so that it can travel."""

    def gradient(upstream: Any) -> Any:
        return tf.math.unsorted_segment_sum(upstream, index, tf.shape(values)[0]), None

    return tf.gather(values, index), gradient


def _shared_gradient(values: Any, size: int) -> Any:
    """``values``, whose gradient is divided by ``size``."""

    @tf.custom_gradient
    def same(x: Any) -> Any:
        return tf.identity(x), lambda upstream: upstream / size

    return same(values)
