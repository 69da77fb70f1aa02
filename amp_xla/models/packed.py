"""Encoders over rows that hold several texts each, end to end (``amp_xla.data.batches.buckets``).

Three things keep the texts of a row apart: position ids start at 0 in each, attention stays inside
a text (a block-diagonal mask, added like bert4keras' mask of a language model), and pooling
averages each text separately. Names and shapes of weights equal those of the model with one
text per row, so either model loads the other's checkpoints.
"""

from __future__ import annotations

from typing import Any

from amp_xla.backend import keras, tf
from amp_xla.models import derivatives


def pooled(encoder_model: Any, slots: int, first: bool = False) -> Any:
    """Build the mean vector of each text, float [R, slots, hidden], from an encoder's output.

    The encoder is of a class that ``extended`` returned. A row has ``slots`` texts or fewer; the
    mean of an empty slot is 0. With ``first``, take the vector of a text's first token instead.
    """

    def mean_per_text(pair: Any, mask: Any = None) -> Any:
        vectors, numbers, *positions = pair
        for position in positions:  # other tokens than a text's first count as padding
            numbers = tf.where(tf.equal(position, 0), numbers, -tf.ones_like(numbers))
        # Divided before the product: a sum of 500 tokens is coarse in half precision.
        return tf.matmul(_shares(numbers, slots, vectors.dtype), vectors)

    layer = keras.layers.Lambda(mean_per_text, name="Pooling")
    positions = encoder_model.inputs[2:3] if first else []
    return layer([encoder_model.output, encoder_model.inputs[3], *positions])


def _shares(numbers: Any, most: Any, dtype: Any) -> Any:
    """Return weights, [R, most, L], of one mean per number: over all places of a row that hold it.

    ``numbers`` are int [R, L]. For each n below ``most``, the k places of a row that hold n get the
    weight 1 / k, the others 0. If no place holds n, all weights are 0, because 0 / 0 is not finite.
    """
    member = tf.equal(tf.cast(numbers, tf.int32)[:, None, :], tf.range(most)[None, :, None])
    share = tf.cast(member, dtype)
    return share / tf.maximum(tf.reduce_sum(share, -1, keepdims=True), 1.0)


def over_windows(model: Any) -> Any:
    """Build a Keras model that averages the outputs of ``model`` over the windows of each text.

    The output of a text's first window becomes the mean; outputs of its other windows become 0.
    Inputs: of ``model``, then ``WindowBatches``' ``windows``, int [groups, windows of a group].
    Output: float32 [R, C], or [R, S, C] for packed rows.
    """

    def means(pair: Any, mask: Any = None) -> Any:
        values, windows = pair
        groups, most = tf.unstack(tf.shape(windows))
        grouped = tf.reshape(values, [groups, 1, most, values.shape[-1]])
        share = _shares(windows, most, values.dtype)
        # Not a matrix product, which mixed precision would compute in half.
        mean = tf.reshape(tf.reduce_sum(share[..., None] * grouped, 2), tf.shape(values))
        return tf.ensure_shape(mean, values.shape)

    windows = keras.layers.Input((None,), dtype="int32", name="Input-Windows")
    output = keras.layers.Lambda(means, name="Windows")([model.output, windows])
    return keras.models.Model([*model.inputs, windows], output)


def extended(base: Any) -> Any:
    """Return a subclass of a bert4keras encoder with attention within texts.

    Its inputs are token ids, segment ids, position ids and slots, all int [R, L]. A slot is the
    number of a token's text in its row, -1 for padding.
    """

    class Packed(base):
        attention_bias: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, custom_position_ids=True, **kwargs)

        def get_inputs(self) -> Any:
            shape = (self.sequence_length,)
            slots = self.apply(layer=keras.layers.Input, shape=shape, name="Input-Slot")
            return [*super().get_inputs(), slots]

        def compute_attention_bias(self, inputs: Any = None) -> Any:
            """Build the mask once; all layers share it."""
            if self.attention_bias is None:
                self.attention_bias = self.apply(
                    inputs=self.inputs[3],
                    layer=keras.layers.Lambda,
                    function=lambda slots, mask=None: _same_text(slots),
                    name="Attention-Packed-Mask",
                )
            return self.attention_bias

    return Packed


def _same_text(slots: Any) -> Any:
    """Return the attention bias, float32 [R, 1, L, L]: 0 if query and key are in the same text.

    Padding may attend to everything: a query without any key would be 0 / 0.
    """
    query, key = slots[:, :, None], slots[:, None, :]
    return derivatives.mask_bias(tf.logical_or(tf.equal(query, key), query < 0))[:, None]
