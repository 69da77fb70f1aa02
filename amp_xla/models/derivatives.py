"""GELU, layer norm and attention with derivatives written by hand.

TensorFlow's derivative keeps the inputs of every operation: for bert4keras' GELU five tensors of
[B, L, 4 * hidden], for its layer norm four of [B, L, hidden]. The derivatives here keep two such
tensors each, and launch half as many kernels. Results are the same as in bert4keras, and so are
names and shapes of weights.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Optional, Sequence, Tuple

from amp_xla import backend
from amp_xla.backend import K, configuring, keras, tf
from amp_xla.models import dropout, fused

_GROUP = 8  # rows of a batch in a sum of the first stage


def install() -> None:
    """Use this module's layers in all bert4keras models that are built afterwards.

    A GELU set by ``bert4keras.backend.set_gelu("tanh")`` is not replaced.
    """
    # Only in bert4keras.models: in bert4keras.layers, the original classes need these names.
    models = backend.bert4keras("models")
    for layer in _layers():
        setattr(models, layer.__name__, layer)
    activations = keras.utils.get_custom_objects()
    if activations.get("gelu") is backend.bert4keras().gelu_erf:
        activations["gelu"] = gelu


def gelu(x: Any) -> Any:
    """Build GELU, x * P(N(0, 1) <= x), of floats of any shape, with the error function.

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
    """Build (x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis.

    Args:
      x: floats [..., hidden].
      gamma: [hidden], the scale.
      beta: [hidden], the offset.
      epsilon: added to the variance. A row of equal numbers gives beta, even if epsilon rounds
        to 0 in float16.

    Returns:
      The shape and dtype of x.

    Source: Ba, Kiros and Hinton, arXiv:1607.06450.
    """
    rows = list(range(x.shape.ndims - 1))

    def value(x: Any, gamma: Any, beta: Any) -> Tuple[Any, Callable[[Any], Tuple[Any, Any, Any]]]:
        centred = x - K.mean(x, -1, keepdims=True)
        variance = K.mean(tf.square(centred), -1, keepdims=True)
        deviation = tf.sqrt(variance + epsilon)
        # The graph rewrite never runs this division in half precision.
        normal = tf.math.divide_no_nan(centred, deviation)

        def derivative(dy: Any) -> Tuple[Any, Any, Any]:
            dnormal = dy * gamma
            along = K.mean(dnormal * normal, -1, keepdims=True)
            dx = dnormal - K.mean(dnormal, -1, keepdims=True) - normal * along
            dx *= tf.math.divide_no_nan(tf.ones_like(deviation), deviation)
            return dx, tf.reduce_sum(dy * normal, rows), tf.reduce_sum(dy, rows)

        return normal * gamma + beta, derivative

    return tf.custom_gradient(value)(x, gamma, beta)


def add_rows(x: Any, rows: Any) -> Any:
    """Build x + rows, floats [B, L, D] and [L, D]; ``rows``' gradient is summed in two stages.

    If XLA sums over an axis of 32 or more elements, it makes that axis the fastest in memory. With
    one sum over the batch, it would transpose the residual stream around each matrix product.
    """

    def value(x: Any, rows: Any) -> Tuple[Any, Callable[[Any], Tuple[Any, Any]]]:
        def derivative(dy: Any) -> Tuple[Any, Any]:
            count, length = tf.shape(dy)[0], tf.shape(dy)[1]
            filled = tf.pad(dy, [[0, tf.math.floormod(-count, _GROUP)], [0, 0], [0, 0]])
            sums = tf.reduce_sum(tf.reshape(filled, [-1, _GROUP, length, dy.shape[2]]), 1)
            sums += tf.nn.relu(-tf.abs(sums))  # 0, which keeps XLA from joining both sums
            return dy, tf.reduce_sum(sums, 0)

        return x + rows, derivative

    return tf.custom_gradient(value)(x, rows)


def attention(
    query: Any, key: Any, value: Any, bias: Optional[Any] = None, mask: Optional[Any] = None
) -> Any:
    """Build softmax(query key^T + bias) value per head, with dropout of the weights.

    Args:
      query: floats [B, L, heads, D], already divided by sqrt(D): this is less work than dividing
        the products, and keeps them in float16's range.
      key, value: floats [B, M, heads, D].
      bias: float that broadcasts to [B, heads, L, M]; it gets no gradient. None = no bias.
      mask: dropout mask that multiplies the attention weights, bool or float [B, heads, L, M]; it
        gets no gradient. None = no dropout.

    Returns:
      [B, L, heads, D], the dtype of ``value``.

    Source: Vaswani et al., arXiv:1706.03762. The derivative of the softmax needs, for each
    query, the sum of its weights times their gradients. This sum equals the product of the output
    and its gradient (Dao et al., arXiv:2205.14135, section B.4).
    """

    def forward(query: Any, key: Any, value: Any) -> Tuple[Any, Callable[[Any], Any]]:
        q, k, v = (tf.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
        scores = tf.matmul(q, k, transpose_b=True)
        if bias is not None:
            scores += tf.cast(bias, scores.dtype)
        weights = tf.nn.softmax(scores)
        used = weights if mask is None else weights * tf.cast(mask, weights.dtype)
        out = tf.matmul(used, v)

        def derivative(dy: Any) -> Tuple[Any, Any, Any]:
            dout = tf.transpose(dy, (0, 2, 1, 3))
            dused = tf.matmul(dout, v, transpose_b=True)
            along = tf.reduce_sum(dout * out, -1, keepdims=True)
            if mask is None:
                dscores = weights * (dused - along)
            else:
                dscores = used * dused - weights * along
            dquery = tf.matmul(dscores, k)
            dkey = tf.matmul(dscores, q, transpose_a=True)
            dvalue = tf.matmul(used, dout, transpose_a=True)
            return tuple(tf.transpose(x, (0, 2, 1, 3)) for x in (dquery, dkey, dvalue))

        return tf.transpose(out, (0, 2, 1, 3)), derivative

    return tf.custom_gradient(forward)(query, key, value)


def relative_attention(
    query: Any, key: Any, value: Any, relative: Any, bias: Optional[Any], mask: Optional[Any]
) -> Any:
    """Build ``attention`` with a vector per pair of positions, added to key and value.

    TensorFlow differentiates it. For a row that holds only padding, the result is finite;
    bert4keras' NEZHA gives NaN.

    Args:
      query, key, value, bias, mask: as for ``attention``.
      relative: floats [L, M, D].

    Returns:
      [B, L, heads, D].

    Source: Shaw et al., arXiv:1803.02155.
    """
    scores = tf.einsum("blhd,bmhd->bhlm", query, key)
    scores += tf.einsum("blhd,lmd->bhlm", query, relative)
    if bias is not None:
        scores += tf.cast(bias, scores.dtype)
    weights = tf.nn.softmax(scores)
    if mask is not None:
        weights *= tf.cast(mask, weights.dtype)
    out = tf.einsum("bhlm,bmhd->blhd", weights, value)
    return out + tf.einsum("bhlm,lmd->blhd", weights, relative)


@functools.lru_cache(maxsize=None)
def _layers() -> Sequence[Any]:
    """Return subclasses of bert4keras' layers that call the functions above."""
    layers = backend.bert4keras("layers")

    class LayerNormalization(layers.LayerNormalization):  # type: ignore[name-defined]
        def call(self, inputs: Any) -> Any:
            whole = self.zero_mean and self.unit_variance
            if self.conditional or not whole or (self.scale, self.offset) != (True, True):
                return super().call(inputs)
            gamma, beta = (tf.convert_to_tensor(w) for w in (self.gamma, self.beta))
            return layer_norm(inputs, gamma, beta, self.epsilon)

    class PositionEmbedding(layers.PositionEmbedding):  # type: ignore[name-defined]
        def call(self, inputs: Any) -> Any:
            special = self.custom_position_ids or self.hierarchical or self.merge_mode != "add"
            if special or not configuring.compiles():
                return super().call(inputs)
            return add_rows(inputs, tf.convert_to_tensor(self.embeddings)[: tf.shape(inputs)[1]])

    class MultiHeadAttention(layers.MultiHeadAttention):  # type: ignore[name-defined]
        def call(self, inputs: Any, mask: Any = None, **kwargs: Any) -> Any:
            x, *others = inputs[:3]
            same = all(other is x for other in others) and self.key_size == self.head_size
            plain = same and x.dtype == tf.float32 and not self.return_attention_scores
            if not (plain and configuring.compiles()):
                return super().call(inputs, mask, **kwargs)
            rows = tf.unstack(tf.shape(x))[:2]
            joined = _joined((self.q_dense, self.k_dense, self.v_dense), x)
            joined = tf.reshape(joined, [*rows, 3, self.heads, self.head_size])
            heads = [joined[:, :, i] for i in range(3)]
            masks = [None, None] if mask is None else [mask[0], mask[2]]
            out, _ = self.pay_attention_to([*heads, *inputs[3:]], masks, **kwargs)
            return self.o_dense(tf.reshape(out, [*rows, self.heads * self.head_size]))

        def pay_attention_to(self, inputs: Any, mask: Any = None, **kwargs: Any) -> Any:
            kind, batch = kwargs.get("p_bias"), fused.batch()
            special = self.normalization != "softmax" or self.return_attention_scores
            if batch and (special or kind or kwargs.get("a_bias")):
                raise fused.unfit(
                    "BERT's attention with padding as its only mask", f"another kind in {self.name}"
                )
            if special or kind not in (None, "rotary", "typical_relative"):
                return super().pay_attention_to(inputs, mask, **kwargs)
            query, key, value, *rest = inputs
            if self.attention_scale:
                query *= self.key_size**-0.5
            if batch:
                return fused.attention(query, key, value, mask[1], batch), None
            bias = _bias(mask[1], rest.pop(0) if kwargs.get("a_bias") else None)
            if kind == "rotary":
                turn = backend.bert4keras().apply_rotary_position_embeddings
                query, key = turn(rest[0], query, key)
            shape = tf.stack([tf.shape(query)[0], self.heads, tf.shape(query)[1], tf.shape(key)[1]])
            mask_factors, mean = self._dropout_factors(shape, self.attention_dropout or 0.0)
            if kind == "typical_relative":
                out = relative_attention(query, key, value, rest[0], bias, mask_factors)
            else:
                out = attention(query, key, value, bias, mask_factors)
            return (out if mean == 1.0 else out * (1.0 / mean)), None

        def _dropout_factors(self, shape: Any, rate: float) -> Tuple[Optional[Any], float]:
            """Return the attention weights' dropout factors, float or bool, and their mean."""
            phase = K.learning_phase()
            if not rate or (isinstance(phase, int) and not phase):
                return None, 1.0
            if isinstance(phase, int):
                return dropout.keep_mask(self.name, shape, rate), 1.0 - rate
            return keras.layers.Dropout(rate)(tf.ones(shape)), 1.0

    return LayerNormalization, PositionEmbedding, MultiHeadAttention


def _joined(layers: Sequence[Any], x: Any) -> Any:
    """Build the outputs of Keras' ``Dense`` layers, joined to [N, all units], by one matmul."""
    for layer in layers:
        if not layer.built:
            with tf.name_scope(layer.name):  # as Keras names the variables
                layer.build(x.shape)
    kernel = tf.concat([tf.convert_to_tensor(layer.kernel) for layer in layers], 1)
    out = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), kernel)
    if layers[0].use_bias:
        out += tf.concat([tf.convert_to_tensor(layer.bias) for layer in layers], 0)
    return out


def _bias(mask: Optional[Any], bias: Optional[Any]) -> Optional[Any]:
    """Combine bert4keras' key mask [B, M] and its bias (or mask) of (query, key) pairs into one.

    ``bias`` is float or bool and broadcasts to [B, heads, L, M] or [B, L, M].
    """
    if bias is not None:
        bias = bias[:, None] if bias.shape.ndims == 3 else bias
        bias = mask_bias(bias) if bias.dtype == tf.bool else bias
    if mask is None:
        return bias
    keys = mask_bias(tf.cast(mask, tf.bool)[:, None, None])
    return keys if bias is None else bias + keys


def mask_bias(allowed: Any) -> Any:
    """Return an attention bias: 0 where ``allowed`` is True, else bert4keras' ``-infinity()``.

    bert4keras from 0.11.5 on has no ``infinity()``: the bias is then -1e4, which float16 can hold.
    """
    infinity = getattr(backend.bert4keras(), "infinity", lambda: 1e4)
    return (tf.cast(allowed, tf.float32) - 1.0) * infinity()
