"""BERT over rows that hold several texts each, end to end (``amp_xla.data.batches.packed``).

The texts of a row are kept apart in three places, and nowhere else: position ids start again at 0
in each, attention stays inside a row and in it inside a text (a block-diagonal mask, added where
bert4keras adds the mask of a language model), and pooling averages each text by itself.
Everything else in BERT works token by token, so that all rows of a step stand in one line.
Weights have the names and shapes of the model over one text a row, so that checkpoints of one
load into the other.
"""

from __future__ import annotations

from typing import Any, List, Optional

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.data.batches.layout import Layout
from amp_xla.models import derivatives
from amp_xla.models import encoders as model


class Packed:
    """``amp_xla.models.encoders``'s functions for packed rows.

    Args:
      layout: T tokens in R rows of given lengths, at most S texts each (``PackedBatches.layout``).
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def encoder(self, bert: Optional[str], **configs: Any) -> Any:
        """Like ``model.encoder``.

        Returns:
          Keras model: token ids, segment ids, position ids and slots, all int [1, T] -> float32
          [1, T, hidden]. A slot is the number of the text a token belongs to, -1 for padding.
        """
        return model.encoder(bert, _packed(self._layout), **configs)

    def classifier(self, encoder_model: Any, classes: int, dropout: float) -> Any:
        """Like ``model.classifier``, one answer for each slot of each row.

        Args:
          encoder_model: what ``encoder`` returned.
          classes: number of labels.
          dropout: rate before the linear layer.

        Returns:
          Keras model with the same inputs -> float32 logits [R * S, classes]; the answer for slot
          s of row r is number r * S + s, that of an empty slot means nothing.
        """

        def mean_of_each(pair: Any, mask: Any = None) -> Any:
            blocks = zip(*(_rows(tensor, self._layout) for tensor in pair))
            means = [_means(vectors, slots, self._layout.slots) for vectors, slots in blocks]
            return tf.concat(means, 0)

        pooled = keras.layers.Lambda(mean_of_each, name="Pooling")(
            [encoder_model.output, encoder_model.inputs[3]]
        )
        return model.head(pooled, encoder_model.inputs, classes, dropout)


def _rows(line: Any, layout: Layout) -> List[Any]:
    """[1, T, ...] -> for every block of rows of a length [rows, length, ...]."""
    tail = line.shape.as_list()[2:]
    sizes = [rows * length for rows, length in layout.blocks]
    parts = tf.split(line, sizes, axis=1)
    return [
        tf.reshape(part, [rows, length, *tail])
        for part, (rows, length) in zip(parts, layout.blocks)
    ]


def _means(vectors: Any, slots: Any, most: int) -> Any:
    """float [R, L, hidden], int [R, L] -> [R * most, hidden]: the mean vector of every text."""
    numbers = tf.range(most)[None, :, None]
    member = tf.cast(tf.equal(tf.cast(slots, tf.int32)[:, None, :], numbers), vectors.dtype)
    # Divided before the product, which so stays a mean: a sum of 500 tokens is coarse in half
    # precision. An empty slot has no token; 0 / 0 would poison the step.
    member /= tf.maximum(tf.reduce_sum(member, -1, keepdims=True), 1.0)
    return tf.reshape(tf.matmul(member, vectors), (-1, vectors.shape[-1]))


def _packed(layout: Layout) -> Any:
    """bert4keras' BERT with two more inputs, and attention inside the rows."""
    models = backend.bert4keras("models")

    class RowsAttention(derivatives.multi_head_attention()):  # type: ignore[misc]  # untyped
        """Attention inside each row, a block of rows of one length at a time."""

        def pay_attention_to(self, inputs: Any, mask: Any = None, **kwargs: Any) -> Any:
            columns = [_rows(tensor, layout) for tensor in inputs[:3]] + [inputs[3:]]
            out = []
            for rows in zip(*columns):
                found, _ = super().pay_attention_to(list(rows), [None, None], a_bias=True)
                out.append(tf.reshape(found, [1, -1, *found.shape.as_list()[2:]]))
            return tf.concat(out, 1), None

    class PackedBERT(models.BERT):  # type: ignore[name-defined]  # untyped
        attention_bias: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, custom_position_ids=True, **kwargs)

        def get_inputs(self) -> Any:
            slots = self.apply(
                layer=keras.layers.Input, shape=(self.sequence_length,), name="Input-Slot"
            )
            return [*super().get_inputs(), slots]

        def apply(self, inputs: Any = None, layer: Any = None, *args: Any, **kwargs: Any) -> Any:
            if layer is models.MultiHeadAttention:
                inputs, layer = [*inputs[:3], *inputs[3]], RowsAttention
            return super().apply(inputs, layer, *args, **kwargs)

        def compute_attention_bias(self, inputs: Any = None) -> Any:
            """One for each block of rows; all layers share them."""
            if self.attention_bias is None:
                self.attention_bias = self.apply(
                    inputs=self.inputs[3],
                    layer=keras.layers.Lambda,
                    function=lambda slots, mask=None: [
                        _same_text(rows) for rows in _rows(slots, layout)
                    ],
                    name="Attention-Packed-Mask",
                )
            return self.attention_bias

    return PackedBERT


def _same_text(slots: Any) -> Any:
    """int [R, L] -> bias float32 [R, 1, L, L]: 0 where key and query are of one text.

    Padding may look at everything: a query with no key at all would be 0 / 0.
    """
    query, key = slots[:, :, None], slots[:, None, :]
    return derivatives.banned(tf.logical_or(tf.equal(query, key), query < 0))[:, None]
