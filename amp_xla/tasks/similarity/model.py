"""Similarity of texts: vectors of texts, scores of pairs, and losses over a batch.

Losses stay in float32 under mixed precision: AMP computes a sum and what follows it, up to the next
matrix product, in float32. Masks are factors 0 and 1, because float16 cannot hold -1e12.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

from amp_xla.backend import K, keras, tf
from amp_xla.data.text.labels import Scale
from amp_xla.models import losses
from amp_xla.models.encoders import inputs_of, pooled
from amp_xla.models.options import EncoderOptions, Pooling
from amp_xla.tasks.similarity.data import Method, apart

SCALE = 20.0  # of a cosine, as in CoSENT; 1 / 0.05, the temperature of SimCSE


def network(
    method: Method, encoder: EncoderOptions, vocab_size: int, max_length: int,
    weights: bool = True, pooling: Pooling = "mean",
) -> Tuple[Any, Dict[str, Any], Any]:  # fmt: skip
    """Build a Keras model of token and segment ids, int [B, L], and the placeholders of a step.

    The model's output is, in a cross-encoder, the logit of a pair, float32 [B, 1]. In a bi-encoder
    it is the mean of a text's token vectors without padding, float [B, hidden].

    Args:
      weights: False = read only the configuration from ``--bert``.
      pooling: which vector of a pair becomes a cross-encoder's logit.

    Returns:
      The model; the placeholders by name; and the tensors to call the model with. For a bi-encoder
      these have a row per text: pairs [B, 2, L] become [2 B, L]. So the two texts of a pair get
      different dropout masks, even if they are equal.
    """
    if not apart(method):
        model = encoder.classifier(vocab_size, 1, max_length, weights=weights, pooling=pooling)
        return model, inputs_of(model, [None], [None], tf.float32), model.inputs
    transformer = encoder.transformer(vocab_size, max_length, weights)
    if weights and encoder.bert is None:
        _shrink_common_vectors(transformer.model)
    inputs = {"token_ids": tf.placeholder(tf.int32, [None, 2, None], name="token_ids")}
    for name in ("labels", "weights"):
        inputs[name] = tf.placeholder(tf.float32, [None], name=name)
    rows = tf.reshape(inputs["token_ids"], [-1, tf.shape(inputs["token_ids"])[2]])
    model = keras.models.Model(transformer.model.inputs, pooled(transformer))
    return model, inputs, [rows, tf.zeros_like(rows)]


def _shrink_common_vectors(model: Any) -> None:
    """Divide the position and segment vectors of a new encoder by 10.

    They are the same for each text. In the mean over the tokens they would dominate: all cosines
    would start near 1, and training would need an epoch or more to tell texts apart.
    """
    for name in ("Embedding-Position", "Embedding-Segment"):
        (vectors,) = model.get_layer(name).weights
        K.set_value(vectors, K.get_value(vectors) / 10.0)


def scores(method: Method, output: Any) -> Any:
    """Build the scores of pairs from ``network``'s output, float32 [B].

    Separate texts are compared by their cosine; two texts in one sequence get a score from 0 to 1.
    """
    return cosines(in_pairs(unit(output))) if apart(method) else tf.sigmoid(output[:, 0])


def loss(method: Method, output: Any, inputs: Mapping[str, Any], smoothing: float) -> Any:
    """Build the loss of ``network``'s output, a float32 scalar; labels are from 0 to 1."""
    labels, weights = inputs["labels"], inputs["weights"]
    if not apart(method):
        labels = labels * (1.0 - smoothing) + smoothing / 2
        rows = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=output[:, 0])
        return losses.weighted_mean(rows, weights)
    vectors = in_pairs(unit(output))
    if method == "cosent":
        return cosent(cosines(vectors), labels, weights)
    return in_batch(vectors, weights)


def unit(vectors: Any) -> Any:
    """Scale vectors to length 1, float32 [..., hidden]; vectors of zeros (padding) stay zeros."""
    vectors = tf.cast(vectors, tf.float32)
    square = tf.reduce_sum(tf.square(vectors), -1, keepdims=True)
    return vectors * tf.rsqrt(tf.maximum(square, 1e-12))


def in_pairs(vectors: Any) -> Any:
    """Group vectors in pairs: float [2 B, hidden] -> float [B, 2, hidden]."""
    return tf.reshape(vectors, [-1, 2, vectors.shape[-1]])


def cosines(vectors: Any) -> Any:
    """Build the cosine of each pair: float32 [B, 2, hidden] -> float32 [B]."""
    return tf.reduce_sum(vectors[:, 0] * vectors[:, 1], -1)


def cosent(cosine: Any, labels: Any, weights: Any) -> Any:
    """Build CoSENT's loss (Su, 2022), a float32 scalar.

    It is log(1 + sum of exp(20 (c_i - c_j))) over rows i and j where j has the higher label, with
    cosines c. All arguments are float32 [B]; labels have any scale, weights are 0 for padding.
    """
    higher = tf.cast(labels[:, None] < labels[None, :], tf.float32)
    counted = higher * weights[:, None] * weights[None, :]
    excess = SCALE * (cosine[:, None] - cosine[None, :]) * counted
    # The maximum is at least 0, the exponent of the 1: on the diagonal, excess is 0.
    largest = tf.stop_gradient(tf.reduce_max(excess))
    total = tf.exp(-largest) + tf.reduce_sum(counted * tf.exp(excess - largest))
    return largest + tf.log(total)


def in_batch(vectors: Any, weights: Any) -> Any:
    """Build SimCSE's loss (Gao et al., arXiv:2104.08821), a float32 scalar.

    It is the cross-entropy over cosines / 0.05. ``vectors``, float32 [B, 2, hidden], have length 1;
    the second texts of other pairs are negatives. ``weights``, [B], are 0 for padding.
    """
    # AMP converts products of float32 to half precision, but not of float64; B is small.
    first, second = (tf.cast(vectors[:, i], tf.float64) for i in range(2))
    similarities = SCALE * tf.cast(tf.matmul(first, second, transpose_b=True), tf.float32)
    largest = tf.stop_gradient(tf.reduce_max(similarities, 1, keepdims=True))
    total = tf.reduce_sum(weights[None, :] * tf.exp(similarities - largest), 1)
    # The maximum avoids log(0): a micro-batch may be all padding.
    rows = largest[:, 0] + tf.log(tf.maximum(total, 1e-30)) - tf.diag_part(similarities)
    return losses.weighted_mean(rows, weights)


def threshold_of(method: Method, scale: Scale) -> Optional[Any]:
    """Return the variable of the threshold: two texts with at least this cosine are similar.

    Its value is chosen on the dev pairs and saved in checkpoints. Return None for a cross-encoder,
    and for labels other than 0 and 1.
    """
    if not (apart(method) and scale.binary):
        return None
    return tf.get_variable(
        "threshold", (), tf.float32, trainable=False, initializer=tf.constant_initializer(0.5)
    )
