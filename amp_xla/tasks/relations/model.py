"""GPLinker: scores of subjects, objects and links between them; its loss from sparse targets.

Source: Su, "GPLinker", kexue.fm/archives/8888; layers are bert4keras' EfficientGlobalPointer.
"""

from __future__ import annotations

from typing import Any

from amp_xla.backend import keras, tf
from amp_xla.models.encoders import pointer

BIAS = -4.0  # of all scores at the start: nearly all are below 0, where most of them belong
POINTERS = ("Entities", "Heads", "Tails")


def linker(encoder: Any, predicates: int, dropout: float) -> Any:
    """Return a Keras model from token and segment ids to scores.

    Args:
      encoder: Keras model with output [B, L, hidden]; its first input is token ids [B, L].
      dropout: dropout rate before the head.

    Returns:
      The model; its output is [B, 2 + 2 * predicates, L, L], with the planes of ``data.cells_of``.
    """
    vectors = keras.layers.Dropout(dropout, name="Head-Dropout")(encoder.output)
    planes = [
        pointer("EfficientGlobalPointer", heads, name, spans=name == "Entities", bias=BIAS)(vectors)
        for name, heads in zip(POINTERS, (2, predicates, predicates))
    ]
    scores = keras.layers.Concatenate(axis=1, name="Scores")(planes)
    return keras.models.Model(encoder.inputs, scores)


def sparse_loss(targets: Any, scores: Any) -> Any:
    """Build the sum over planes of ``losses.several_labels``, float32 [B].

    bert4keras subtracts the positive terms from the sum of all terms. If a positive score is high,
    float32 rounds the rest to 0. Here the sum is over the other terms only.

    Args:
      targets: positive cells as row * L + column, int32 [B, planes, most]. An unused place
        is 0; this is the cell ([CLS], [CLS]), which has no loss.
      scores: float [B, planes, L, L].
    """
    # AMP converts neither this operation nor those that use its result.
    scores = tf.ensure_shape(tf.cast(scores, tf.float32), scores.shape)
    shape = tf.shape(scores)
    flat, cells = tf.reshape(scores, [-1]), shape[2] * shape[3]
    targets = tf.pad(targets, [[0, 0], [0, 0], [0, 1]])
    offsets = tf.reshape(tf.range(shape[0] * shape[1]) * cells, [shape[0], shape[1], 1])
    places = (targets + offsets)[..., None]
    absent = tf.fill(tf.shape(targets), float("-inf"))
    positive = tf.where(targets > 0, -tf.gather_nd(flat, places), absent)
    others = tf.tensor_scatter_nd_update(flat, places, absent)
    others = tf.reshape(others, [shape[0], shape[1], cells])
    positive = tf.concat([tf.zeros_like(positive[..., :1]), positive], -1)
    negative = tf.nn.softplus(tf.reduce_logsumexp(others, -1))
    return tf.reduce_sum(negative + tf.reduce_logsumexp(positive, -1), -1)
