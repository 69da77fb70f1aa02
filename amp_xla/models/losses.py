"""Losses over padded batches; rows of weight 0 have no effect."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from amp_xla.backend import tf


def cross_entropy(labels: Any, logits: Any, smoothing: float = 0.0) -> Any:
    """Build the cross-entropy of each sample, float32 [B], or [B, S] for packed rows.

    ``labels`` are int of the same shape, ``logits`` float [..., classes]. If a sample can have
    several labels, ``labels`` are 0 or 1 for each class, [..., classes]. Then the loss is
    ``several_labels``, and ``smoothing`` is ignored. Otherwise ``smoothing`` is the share of a
    label's weight that is spread over all classes (Szegedy et al., arXiv:1512.00567, section 7).
    """
    labels, logits = tf.convert_to_tensor(labels), tf.cast(logits, tf.float32)
    if several(labels, logits):
        return several_labels(labels > 0, logits)
    hard = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if not smoothing:
        return hard
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
    return (1.0 - smoothing) * hard + smoothing * spread


def several(labels: Any, logits: Any) -> bool:
    """Return True if ``labels`` are 0 or 1 for each class."""
    return bool(labels.shape.ndims == logits.shape.ndims)


def several_labels(right: Any, logits: Any) -> Any:
    """Build log(1 + sum over wrong labels of exp(s)) + log(1 + sum over right labels of exp(-s)).

    s are the logits; a label is predicted if s > 0. This is ``multilabel_categorical_crossentropy``
    of bert4keras' author, but -infinity instead of -1e12 keeps a label out of the other sum.
    Arguments are [..., classes]; ``logits``, float32, may be -infinity where ``right`` is False.
    """
    signed = tf.where(right, -logits, logits)
    absent = tf.fill(tf.shape(logits), float("-inf"))
    zero = tf.zeros_like(logits[..., :1])

    def log_sum(terms: Any) -> Any:
        return tf.reduce_logsumexp(tf.concat([zero, tf.where(terms, signed, absent)], -1), -1)

    return log_sum(right) + log_sum(tf.logical_not(right))


def squared(labels: Any, logits: Any) -> Any:
    """Build (logit - label)^2 in float32; result and labels: [B] or [B, S], logits: [..., 1]."""
    # AMP converts neither this operation nor those that use its result.
    logits = tf.ensure_shape(tf.cast(logits, tf.float32), logits.shape)
    return tf.square(logits[..., 0] - labels)


def weighted_mean(values: Any, weights: Any) -> Any:
    """Build sum(values * weights) / sum(weights), or 0 if all weights are 0; float32 scalar."""
    return tf.reduce_sum(values * weights) / tf.maximum(tf.reduce_sum(weights), 1e-6)


def divergence(first: Any, second: Any) -> Any:
    """Build KL(p || q) + KL(q || p) of logits of p and q, float [..., classes] -> float32 [...]."""
    first, second = (tf.nn.log_softmax(tf.cast(x, tf.float32)) for x in (first, second))
    return tf.reduce_sum((tf.exp(first) - tf.exp(second)) * (first - second), -1)


def divergence_of_several(first: Any, second: Any) -> Any:
    """Build the sum of ``divergence`` over labels, float [..., labels] -> float32 [...].

    Each label has two classes: present, with its logit, and absent, with the logit 0.
    """
    first, second = (tf.cast(x, tf.float32) for x in (first, second))
    return tf.reduce_sum((tf.sigmoid(first) - tf.sigmoid(second)) * (first - second), -1)


def classification(
    labels: Any,
    logits: Any,
    weights: Any,
    smoothing: float = 0.0,
    class_weights: Optional[Sequence[float]] = None,
) -> Tuple[Any, Any]:
    """Build loss and accuracy of a batch, both float32 scalars.

    Args:
      labels: int32 [B], or [B, S] for packed rows. If a sample can have several labels: 0 or 1 for
        each class, [..., classes]; then accuracy is the share of samples with all labels right.
      logits, smoothing: as for ``cross_entropy``.
      weights: float32 [B] or [B, S], 1 for samples and 0 for padding.
      class_weights: factor of the loss for each class, if samples have one label; None = 1.
    """
    labels = tf.cast(labels, tf.int32)
    if several(labels, logits):
        hits = tf.reduce_all(tf.equal(logits > 0, labels > 0), -1)
    else:
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
    accuracy = weighted_mean(tf.cast(hits, tf.float32), weights)
    entropy = cross_entropy(labels, logits, smoothing)
    if class_weights is not None:
        entropy *= tf.gather(tf.constant(class_weights, tf.float32), labels)
    return weighted_mean(entropy, weights), accuracy
