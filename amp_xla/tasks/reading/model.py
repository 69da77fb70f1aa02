"""Question answering: scores of each token, as first and as last of the answer; the loss."""

from __future__ import annotations

from typing import Any, Dict

from amp_xla.backend import keras, tf
from amp_xla.models import encoders


def reader(encoder: Any) -> Any:
    """Return a Keras model on bert4keras' ``encoder``; its output is scores, float32 [B, L, 2]."""
    scores = encoders.scores(encoder.model.output, 2, "Answer")
    return keras.models.Model(encoder.model.inputs, scores)


def threshold() -> Any:
    """Return the variable of the threshold for "no answer".

    "No answer" is predicted if its score minus the score of the best span reaches the threshold.
    The threshold is chosen on dev if a dev question has no answer, and saved in checkpoints.
    """
    never = tf.constant_initializer(1e30)
    return tf.get_variable("threshold", (), tf.float32, trainable=False, initializer=never)


def loss(inputs: Dict[str, Any], scores: Any) -> Any:
    """Build the loss, float32 [B]: the mean cross-entropy of an answer's first and last token.

    The softmax is over [CLS], the passage and its [SEP]. The loss is 0 for rows with the label -1,
    whose answer is not in the tokens.
    """
    # AMP converts neither this operation nor those that use its result.
    scores = tf.ensure_shape(tf.cast(scores, tf.float32), scores.shape)
    labels, length = inputs["labels"], tf.shape(scores)[1]
    allowed = tf.logical_or(inputs["segment_ids"] > 0, tf.equal(tf.range(length), 0))
    allowed = tf.broadcast_to(allowed[..., None], tf.shape(scores))
    masked = tf.where(allowed, scores, tf.fill(tf.shape(scores), float("-inf")))
    of_labels = tf.reduce_sum(scores * tf.one_hot(labels, length, axis=1), 1)
    known = tf.cast(labels[:, 0] >= 0, tf.float32)
    return known * tf.reduce_mean(tf.reduce_logsumexp(masked, 1) - of_labels, 1)
