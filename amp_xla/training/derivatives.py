"""GELU and layer norm with derivatives written by hand.

TensorFlow's own derivative of a formula goes back through every operation of it and keeps what
each of them needs: for bert4keras' GELU five tensors of [B, L, 4 * hidden], for its layer norm
four of [B, L, hidden]. By hand it takes two of each, and half as many kernels. The values are
those of bert4keras' formulas; weights have the same names and shapes.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Tuple

from amp_xla import backend
from amp_xla.backend import K, keras, tf


def install() -> None:
    """Makes every bert4keras model built from now on use both.

    A GELU that was chosen by hand (``bert4keras.backend.set_gelu("tanh")``) stays.
    """
    # Not in bert4keras.layers: the methods there look their own class up by this name.
    backend.bert4keras("models").LayerNormalization = _layer_normalization()
    activations = keras.utils.get_custom_objects()
    if activations.get("gelu") is backend.bert4keras().gelu_erf:
        activations["gelu"] = gelu


def gelu(x: Any) -> Any:
    """x * P(N(0, 1) <= x), by the error function.

    Args:
      x: floats of any shape.

    Returns:
      The same shape and dtype.

    Source: Hendrycks and Gimpel, arXiv:1606.08415.
    """

    def value(x: Any) -> Tuple[Any, Callable[[Any], Any]]:
        below = 0.5 + 0.5 * tf.math.erf(x * math.sqrt(0.5))

        def derivative(dy: Any) -> Any:
            density = tf.exp(tf.square(x) * -0.5)
            return dy * (below + (x * (1.0 / math.sqrt(2.0 * math.pi))) * density)

        return x * below, derivative

    return tf.custom_gradient(value)(x)


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis.

    Args:
      x: floats [..., hidden].
      gamma: [hidden], the scale.
      beta: [hidden], the offset.
      epsilon: added to the variance. A row of equal numbers gives beta, even where float16
        takes epsilon for 0.

    Returns:
      The shape and dtype of x.

    Source: Ba, Kiros and Hinton, arXiv:1607.06450.
    """
    rows = list(range(x.shape.ndims - 1))

    def value(x: Any, gamma: Any, beta: Any) -> Tuple[Any, Callable[[Any], Tuple[Any, Any, Any]]]:
        centred = x - K.mean(x, -1, keepdims=True)
        variance = K.mean(tf.square(centred), -1, keepdims=True)
        deviation = tf.sqrt(variance + epsilon)
        # This division is on no list of ops that may run in half precision: what follows keeps
        # the digits of float32.
        normal = tf.math.divide_no_nan(centred, deviation)

        def derivative(dy: Any) -> Tuple[Any, Any, Any]:
            dnormal = dy * gamma
            along = K.mean(dnormal * normal, -1, keepdims=True)
            dx = dnormal - K.mean(dnormal, -1, keepdims=True) - normal * along
            dx *= tf.math.divide_no_nan(tf.ones_like(deviation), deviation)
            return dx, tf.reduce_sum(dy * normal, rows), tf.reduce_sum(dy, rows)

        return normal * gamma + beta, derivative

    return tf.custom_gradient(value)(x, gamma, beta)


@functools.lru_cache(maxsize=None)
def _layer_normalization() -> Any:
    """bert4keras' layer of the same name, in its usual form; other forms are left to it."""
    original = backend.bert4keras("layers").LayerNormalization
    recompute_grad = backend.bert4keras().recompute_grad

    class LayerNormalization(original):  # type: ignore[misc, valid-type]
        def call(self, inputs: Any) -> Any:
            if self.conditional or not (self.zero_mean and self.unit_variance):
                return super().call(inputs)
            if self.scale is not True or self.offset is not True:
                return super().call(inputs)
            return self._usual(inputs)

        @recompute_grad
        def _usual(self, inputs: Any) -> Any:
            gamma, beta = (tf.convert_to_tensor(w) for w in (self.gamma, self.beta))
            return layer_norm(inputs, gamma, beta, self.epsilon)

    return LayerNormalization
