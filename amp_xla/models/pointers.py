"""bert4keras' global pointers: a score for each pair of tokens."""

from __future__ import annotations

from typing import Any

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.models.derivatives import mask_bias

HEAD_SIZE = 64


def pointer(kind: str, heads: int, name: str, spans: bool = True, bias: float = 0.0) -> Any:
    """Return bert4keras' layer; its mask is an added bias, as ONNX and half precision need.

    Args:
      kind: ``GlobalPointer`` or ``EfficientGlobalPointer``.
      heads: number of planes of scores, each [L, L].
      name: name of the layer.
      spans: pairs are the first and last token of a span; False = any two tokens.
      bias: scores at the start; only an ``EfficientGlobalPointer`` has such weights.
    """

    class Pointer(getattr(backend.bert4keras("layers"), kind)):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            super().build(input_shape)
            if bias:  # half of it comes from each of the two tokens
                self.q_dense.bias_initializer = keras.initializers.Constant(bias)

        def call(self, inputs: Any, mask: Any = None) -> Any:
            places = tf.range(tf.shape(inputs)[1])
            allowed = tf.logical_and(mask[:, :, None], mask[:, None])
            if spans:
                allowed = tf.logical_and(allowed, places[:, None] <= places)
            return super().call(inputs) + mask_bias(allowed)[:, None]

    return Pointer(heads, HEAD_SIZE, RoPE=spans, tril_mask=False, name=name)
