"""Losses over padded batches: rows of weight zero count for nothing."""

from __future__ import annotations

from typing import Any, Tuple

from amp_xla.backend import tf


def cross_entropy(labels: Any, logits: Any) -> Any:
    """int [B], float [B, classes] -> float32 [B]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=tf.cast(logits, tf.float32)
    )


def weighted_mean(values: Any, weights: Any) -> Any:
    """sum(values * weights) / sum(weights), 0 where all weights are 0; float32 scalar."""
    return tf.reduce_sum(values * weights) / tf.maximum(tf.reduce_sum(weights), 1e-6)


def classification(labels: Any, logits: Any, weights: Any) -> Tuple[Any, Any]:
    """Loss and accuracy of a batch, both float32 scalars.

    Args:
      labels: int32 [B].
      logits: float [B, classes].
      weights: float32 [B], 1 for samples, 0 for rows that fill up the batch.
    """
    hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
    accuracy = weighted_mean(tf.cast(hits, tf.float32), weights)
    return weighted_mean(cross_entropy(labels, logits), weights), accuracy
