"""Initial weights of a small UniLM: heads that attend to neighbours, and a last layer that copies.

With random weights a small model stays at the loss of word frequencies for thousands of steps.
"""

from __future__ import annotations

import math
from typing import Any, List, Tuple

import numpy as np

from amp_xla.backend import K, tf
from amp_xla.models.options import EncoderOptions

MATCH = 5.0  # initial logit of the neighbour to which a head attends


def language_model(options: EncoderOptions, vocab_size: int, length: int, weights: bool) -> Any:
    """Build a UniLM; its arguments are those of ``EncoderOptions.language_model``."""
    if options.bert is not None:
        return options.language_model(vocab_size, length, "unilm", weights)
    lm = options.language_model(vocab_size, length, "unilm", weights, extend=_with_sinusoids)
    _look_at_neighbours(lm, min(2, lm.config["num_hidden_layers"] - 1))
    _start_by_copying(lm)
    return lm


def _start_by_copying(lm: Any) -> None:
    """Make a new model predict the tokens that its last layer attends to.

    The layer's projection starts as a rotation, which separates copied tokens from the token at
    the position itself; the head's transform starts as its inverse.
    """
    size, layers = lm.config["hidden_size"], lm.transformer.layers
    last = layers[f"Transformer-{lm.config['num_hidden_layers'] - 1}-MultiHeadSelfAttention"]
    turn, _ = np.linalg.qr(np.random.RandomState(0).standard_normal((size, size)))
    dense = (last.v_dense, last.o_dense, layers["MLM-Dense"])
    K.batch_set_value([(x.kernel, y) for x, y in zip(dense, (np.eye(size), turn, turn.T))])


def _look_at_neighbours(lm: Any, layers: int) -> None:
    """Make each head of the first ``layers`` attend to a neighbour: -1, 1, -2, 2 and so on."""
    heads = lm.config["num_attention_heads"]
    for layer in range(layers):
        numbers = range(layer * heads, (layer + 1) * heads)
        offsets = [(1 + n // 2) * (-1, 1)[n % 2] for n in numbers]
        query, key = _neighbour_kernels(offsets, lm.config["hidden_size"])
        attention = lm.transformer.layers[f"Transformer-{layer}-MultiHeadSelfAttention"]
        K.batch_set_value([(attention.q_dense.kernel, query), (attention.k_dense.kernel, key)])


def _with_sinusoids(base: Any) -> Any:
    """Return a subclass of bert4keras' BERT whose position embeddings start as sinusoids.

    With sinusoids, attention to a neighbour is a linear map.
    """

    class Bert(base):
        def apply(self, inputs: Any = None, layer: Any = None, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("name") == "Embedding-Position":
                kwargs["embeddings_initializer"] = lambda shape, dtype=None, **_: tf.constant(
                    _sinusoids(*shape) * self.initializer.stddev, tf.float32
                )
            return super().apply(inputs, layer, *args, **kwargs)

    return Bert


def _sinusoids(positions: int, size: int) -> Any:
    """Return float64 [positions, size], mean square 1 (Vaswani et al., arXiv 1706.03762)."""
    angles = np.arange(positions)[:, None] * _rates(size)[None, :]
    return math.sqrt(2.0) * np.concatenate([np.sin(angles), np.cos(angles)], 1)


def _rates(size: int) -> Any:
    """Return float64 [size / 2]: radians per position, largest first."""
    return 10000.0 ** -(np.arange(size // 2) / (size // 2))


def _neighbour_kernels(offsets: List[int], hidden: int) -> Tuple[Any, Any]:
    """Return query and key kernels, float32 [hidden, hidden]: head i attends to ``offsets[i]``.

    Both read the fastest sinusoids of a position. The query's are rotated by the offset, so that
    they equal the key's at that offset: sin(x + w) = sin x cos w + cos x sin w.
    """
    size = hidden // len(offsets)
    pairs = size // 2
    query, key = np.zeros((2, hidden, hidden), np.float32)
    sines = np.arange(pairs)
    cosines = sines + hidden // 2
    for head, offset in enumerate(offsets):
        first = head * size + np.arange(pairs)
        second = first + pairs
        turn = _rates(hidden)[:pairs] * offset
        key[sines, first] = key[cosines, second] = 1.0
        query[sines, first] = query[cosines, second] = np.cos(turn)
        query[cosines, first] = np.sin(turn)
        query[sines, second] = -np.sin(turn)
    # So that a perfect match has the logit MATCH after attention divides by sqrt(size).
    scale = math.sqrt(MATCH * math.sqrt(size) / pairs)
    return scale * query, scale * key
