"""Losses over padded batches; rows of weight 0 have no effect."""

from __future__ import annotations

from typing import Any, Tuple

from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError


def cross_entropy(labels: Any, logits: Any, smoothing: float = 0.0) -> Any:
    """Build the cross-entropy: int [B] or [B, S], float [..., classes] -> float32 like the labels.

    ``smoothing`` is the share of a label's weight that all classes get (Szegedy et al.,
    arXiv:1512.00567, section 7).
    """
    logits = tf.cast(logits, tf.float32)
    hard = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if not smoothing:
        return hard
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
    return (1.0 - smoothing) * hard + smoothing * spread


def weighted_mean(values: Any, weights: Any) -> Any:
    """Build sum(values * weights) / sum(weights), or 0 if all weights are 0; float32 scalar."""
    return tf.reduce_sum(values * weights) / tf.maximum(tf.reduce_sum(weights), 1e-6)


def divergence(first: Any, second: Any) -> Any:
    """Build KL(p || q) + KL(q || p) of two logits, float [..., classes] -> float32 [...]."""
    first, second = (tf.nn.log_softmax(tf.cast(x, tf.float32)) for x in (first, second))
    return tf.reduce_sum((tf.exp(first) - tf.exp(second)) * (first - second), -1)


def classification(
    labels: Any, logits: Any, weights: Any, smoothing: float = 0.0
) -> Tuple[Any, Any]:
    """Build loss and accuracy of a batch, both float32 scalars.

    Args:
      labels: int32 [B], or [B, S] for packed rows.
      logits: float [..., classes].
      weights: float32, shaped like ``labels``, 1 for samples and 0 for padding.
      smoothing: as for ``cross_entropy``; 0 <= smoothing < 1.

    Raises:
      AmpXlaError: a smoothing outside [0, 1).
    """
    if not 0.0 <= smoothing < 1.0:
        raise AmpXlaError(f"label smoothing is {smoothing}; allowed is 0 to below 1")
    hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
    accuracy = weighted_mean(tf.cast(hits, tf.float32), weights)
    return weighted_mean(cross_entropy(labels, logits, smoothing), weights), accuracy
