"""BERT over rows that hold several texts each, end to end (``amp_xla.data.packing``).

The texts of a row are kept apart in three places, and nowhere else: position ids start again at 0
in each, attention stays inside a text (a block-diagonal mask, added where bert4keras adds the
mask of a language model), and pooling averages each text by itself. Everything else in BERT works
token by token. Weights have the names and shapes of the model over one text a row, so that
checkpoints of one load into the other.
"""

from __future__ import annotations

from typing import Any, Optional

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.training import model
from amp_xla.training.dropout import Dropout


def encoder(bert: Optional[str], **configs: Any) -> Any:
    """Like ``amp_xla.training.model.encoder``, for packed rows.

    Returns:
      Keras model: token ids, segment ids, position ids and slots, all int [R, L] -> float32
      [R, L, hidden]. A slot is the number of the text a token belongs to, -1 for padding.
    """
    return model.encoder(bert, _packed(backend.bert4keras("models")), **configs)


def classifier(encoder_model: Any, classes: int, slots: int, dropout: float) -> Any:
    """Like ``amp_xla.training.model.classifier``, one answer for each slot of each row.

    Args:
      encoder_model: what ``encoder`` returned.
      classes: number of labels.
      slots: S, most texts of a row (``PackedBatches.slots``).
      dropout: rate before the linear layer.

    Returns:
      Keras model with the same inputs -> float32 logits [R * S, classes]; the answer for slot s
      of row r is number r * S + s, that of an empty slot means nothing.
    """

    def mean_of_each(pair: Any, mask: Any = None) -> Any:
        vectors, slot_ids = pair
        member = tf.cast(
            tf.equal(tf.cast(slot_ids, tf.int32)[:, None, :], tf.range(slots)[None, :, None]),
            vectors.dtype,
        )
        # Divided before the product, which so stays a mean: a sum of 500 tokens is coarse in half
        # precision. An empty slot has no token; 0 / 0 would poison the step.
        member /= tf.maximum(tf.reduce_sum(member, -1, keepdims=True), 1.0)
        return tf.reshape(tf.matmul(member, vectors), (-1, vectors.shape[-1]))

    pooled = keras.layers.Lambda(mean_of_each, name="Pooling")(
        [encoder_model.output, encoder_model.inputs[3]]
    )
    pooled = Dropout(dropout, name="Pooling-Dropout")(pooled)
    logits = keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02), name="Logits"
    )(pooled)
    return keras.models.Model(encoder_model.inputs, logits)


def _packed(models: Any) -> Any:
    """bert4keras' BERT with two more inputs and a mask."""

    class PackedBERT(models.BERT):
        attention_bias: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, custom_position_ids=True, **kwargs)

        def get_inputs(self) -> Any:
            slots = self.apply(
                layer=keras.layers.Input, shape=(self.sequence_length,), name="Input-Slot"
            )
            return [*super().get_inputs(), slots]

        def compute_attention_bias(self, inputs: Any = None) -> Any:
            if self.attention_bias is None:
                self.attention_bias = self.apply(
                    inputs=self.inputs[3],
                    layer=keras.layers.Lambda,
                    function=_same_text,
                    name="Attention-Packed-Mask",
                )
            return self.attention_bias

    return PackedBERT


def _same_text(slots: Any, mask: Any = None) -> Any:
    """[R, L] -> what bert4keras takes for a mask: bool [R, L, L], or in 0.11.3 a bias.

    Padding may look at everything: a query with no key at all would be 0 / 0.
    """
    query, key = slots[:, :, None], slots[:, None, :]
    allowed = tf.logical_or(tf.equal(query, key), query < 0)
    if backend.bert4keras_version() >= (0, 11, 5):
        return allowed
    return (tf.cast(allowed, K.floatx()) - 1.0)[:, None] * backend.bert4keras().infinity()
