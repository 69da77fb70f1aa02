"""BERT in JAX, with bert4keras' arithmetic and weights.

Its layers are frozen dataclasses, registered as pytrees, so policies, loss scales, Optax, donation
and checkpoints accept them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Mapping, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

_FAR = -1e30  # score of padding; scores are float32
EPSILON = 1e-12
FUSED = "cudnn"  # implementation of jax.nn.dot_product_attention on NVIDIA's GPUs
STATIC = {"static": True}  # compiled into the program, not traced


class Dropout(NamedTuple):
    """Dropout of one step: key of its masks, uint32 [2], and rates.

    Attributes:
      rate: share of activations to drop.
      attention: share of attention weights to drop.
      fused: use cuDNN's attention, which drops no attention weights.
    """

    key: jax.Array
    rate: float
    attention: float
    fused: bool = False


def dropped(x: jax.Array, dropout: Optional[Dropout], place: int) -> jax.Array:
    """Return ``x`` with a share of its elements set to 0 and the others scaled up.

    A hash of the step's key, ``place`` (the mask's number in the model) and the element's number
    decides which elements are 0. So the result does not depend on the number of processes. JAX's
    generator, Threefry, would double the time of a step and of its compilation on a CPU.
    """
    if dropout is None or not dropout.rate:
        return x
    element = jnp.zeros(x.shape, jnp.uint32)
    for axis in range(x.ndim):
        element = element * np.uint32(x.shape[axis]) + jax.lax.broadcasted_iota(
            jnp.uint32, x.shape, axis
        )
    first, second = dropout.key[0], dropout.key[1]
    bits = _mixed(_mixed(element ^ _mixed(first + np.uint32(place))) + second)
    keep = bits >= np.uint32(round(dropout.rate * 2**32))
    return jnp.where(keep, x / (1.0 - dropout.rate), jnp.zeros([], x.dtype))


def _mixed(bits: jax.Array) -> jax.Array:
    """Apply MurmurHash3's finaliser (Appleby, 2011) to uint32: each bit affects all bits."""
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense:
    """Linear layer: float [..., in] -> [..., out]."""

    kernel: jax.Array
    bias: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel + self.bias


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Norm:
    """Layer norm over the last axis, computed in float32 for every input dtype."""

    gamma: jax.Array
    beta: jax.Array
    epsilon: float = dataclasses.field(default=EPSILON, metadata=STATIC)

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + self.epsilon)
        return (centred * scale * self.gamma + self.beta).astype(x.dtype)


def has_fused_attention(dtype: Any, size: int) -> bool:
    """Return whether cuDNN has attention for this dtype and head size on this device."""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))  # NVIDIA's: "9.0"
    known = capability.partition(".")[0].isdigit() and float(capability) >= 8.0
    return known and dtype in (jnp.float16, jnp.bfloat16) and size % 8 == 0 and size <= 128


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, allowed: jax.Array,
    dropout: Optional[Dropout], place: int,
) -> jax.Array:  # fmt: skip
    """Compute attention, [B, L, heads, size]; ``allowed``: bool [B, 1, 1, L], False for padding."""
    query = query * query.shape[-1] ** -0.5  # first: the product may exceed float16's range
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
    weights = jax.nn.softmax(jnp.where(allowed, scores, _FAR)).astype(query.dtype)
    if dropout is not None:
        weights = dropped(weights, dropout._replace(rate=dropout.attention), place)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    """One transformer layer: attention, add, norm, feed forward, add, norm."""

    query: Dense
    key: Dense
    value: Dense
    output: Dense
    attention_norm: Norm
    up: Dense
    down: Dense
    norm: Norm
    heads: int = dataclasses.field(metadata=STATIC)

    def __call__(
        self, x: jax.Array, mask: jax.Array, dropout: Optional[Dropout], place: int
    ) -> jax.Array:
        """Return the output for ``x``, both [B, L, hidden].

        Args:
          x: output of the layer below.
          mask: bool [B, L], False for padding.
          dropout: key and rate of this step; None = no dropout.
          place: number of the layer's first dropout mask; a layer has three.
        """
        rows, length, _ = x.shape

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(rows, length, self.heads, -1)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        if dropout is not None and dropout.fused:
            # Padding is at the end of a row; a row of padding alone attends to its first token.
            ends = jnp.where(mask, jnp.arange(1, length + 1, dtype=jnp.int32), 1)
            lengths = ends.max(1)
            mixed = jax.nn.dot_product_attention(
                query, key, value, query_seq_lengths=lengths, key_value_seq_lengths=lengths,
                implementation=FUSED,
            )  # fmt: skip
        else:
            mixed = attention(query, key, value, mask[:, None, None, :], dropout, place)
        out = self.output(mixed.reshape(rows, length, -1))
        x = self.attention_norm(x + dropped(out, dropout, place + 1))
        inner = jax.nn.gelu(self.up(x), approximate=False)
        return self.norm(x + dropped(self.down(inner), dropout, place + 2))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bert:
    """Encoder: token ids (0 = padding) and segment ids, int [B, L] -> float [B, L, hidden]."""

    tokens: jax.Array
    segments: jax.Array
    positions: jax.Array
    norm: Norm
    layers: List[Layer]

    def __call__(
        self, token_ids: jax.Array, segment_ids: jax.Array, dropout: Optional[Dropout] = None
    ) -> jax.Array:
        """Return the token vectors. Embeddings use dropout mask 1, each layer the next three."""
        x = self.tokens[token_ids] + self.segments[segment_ids]
        x = self.norm(x + self.positions[: token_ids.shape[1]])
        x = dropped(x, dropout, 1)
        for number, layer in enumerate(self.layers):
            x = layer(x, token_ids != 0, dropout, 2 + 3 * number)
        return x


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Classifier:
    """Classifier: mean of the vectors of non-padding tokens, then dropout, then a linear layer."""

    bert: Bert
    logits: Dense

    def __call__(
        self, token_ids: jax.Array, segment_ids: jax.Array, dropout: Optional[Dropout] = None
    ) -> jax.Array:
        """Map ids, int [B, L], to logits, float32 [B, classes]."""
        vectors = self.bert(token_ids, segment_ids, dropout).astype(jnp.float32)
        real = (token_ids != 0).astype(jnp.float32)[:, :, None]
        # At least 1: a padding row has no token, and 0 / 0 would make the whole batch NaN.
        pooled = (vectors * real).sum(1) / jnp.maximum(real.sum(1), 1.0)
        pooled = dropped(pooled.astype(self.logits.kernel.dtype), dropout, 0)
        return self.logits(pooled).astype(jnp.float32)


def new_classifier(config: Mapping[str, Any], classes: int, seed: int) -> Classifier:
    """Return an untrained classifier with the sizes in a ``bert_config.json``.

    Weights are normal with standard deviation 0.02, truncated at two standard deviations.
    """
    layers, hidden, inner = (
        config[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size")
    )
    keys = iter(jax.random.split(jax.random.key(seed), 4 + 6 * layers))
    epsilon = config.get("layer_norm_eps", EPSILON)

    def table(*size: int) -> jax.Array:
        return 0.02 * jax.random.truncated_normal(next(keys), -2.0, 2.0, size, jnp.float32)

    def dense(rows: int, columns: int) -> Dense:
        return Dense(table(rows, columns), jnp.zeros([columns]))

    def norm() -> Norm:
        return Norm(jnp.ones([hidden]), jnp.zeros([hidden]), epsilon)

    def layer() -> Layer:
        query, key, value, output = (dense(hidden, hidden) for _ in range(4))
        return Layer(
            query, key, value, output, norm(), dense(hidden, inner), dense(inner, hidden), norm(),
            heads=config["num_attention_heads"],
        )  # fmt: skip

    bert = Bert(
        table(config["vocab_size"], hidden), table(config["type_vocab_size"], hidden),
        table(config["max_position_embeddings"], hidden), norm(), [layer() for _ in range(layers)],
    )  # fmt: skip
    return Classifier(bert, dense(hidden, classes))
