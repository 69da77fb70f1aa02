"""Click models: each rank has the dense tower, and some rows of the embedding table.

``dlrm`` (Naumov et al., arXiv 1906.00091): a tower over the numbers, dot products of all pairs of
vectors, and a tower over products and vectors. ``deepfm`` (Guo et al., arXiv 1703.04247): the sum
of a second-order factorization machine and of a tower over all vectors and numbers.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

from amp_xla.backend import keras, tf
from amp_xla.models.losses import weighted_mean
from amp_xla.sok.layers import DistributedEmbedding
from amp_xla.sok.ranks import Init
from amp_xla.tasks.recommendation.data import Columns, Lines


def described(train: Lines, dev: Lines, options: Any, ranks: int) -> str:
    """Return a text to print: the first sample, how many samples, the table's memory per rank."""
    bytes_of_table = options.rows * options.table_width * 12
    return (
        f"{train.sample()}\n{len(train):,} training and {len(dev):,} dev samples, "
        f"{train.columns.numbers} numbers, {train.columns.slots} slots; "
        f"a table of {options.rows:,} x {options.table_width}: "
        f"{bytes_of_table / ranks / 1e6:,.0f} MB per rank with Adam's moments"
    )


class Recommender(keras.Model):
    """A model that maps the numbers and ids of a sample to the logit of its label.

    ``table`` is an ``amp_xla.sok.DistributedEmbedding`` with ``options.table_width`` numbers per
    row, ``options`` are ``TowerOptions``; ``seed``, for the towers, must be equal on all ranks.
    """

    def __init__(self, table: Any, slots: int, options: Any, seed: int) -> None:
        super().__init__(name="recommender")
        self.table, self._slots, self._options, self._seed = table, slots, options, seed
        self._dense_count = 0
        hidden = [max(1, options.hidden >> i) for i in range(options.layers)]
        self._bottom = self._tower(hidden[:-1] + [options.width], "bottom")
        self._top = self._tower(hidden, "top")
        self._logit = self._dense(1, None, "logit")
        self._first_order = self._dense(1, None, "first_order")  # for deepfm only

    def call(self, numbers: Any, ids: Any) -> Any:
        """Return logits, float32 [B].

        ``numbers`` are float32 [B, columns]; ``ids`` are int64 [B, slots, values], -1 = no value.
        """
        vectors = self.table(_sparse(ids))
        dense = bool(numbers.shape.as_list()[-1])
        if self._options.tower == "deepfm":
            return self._deepfm(vectors, numbers if dense else None)
        if dense:
            bottom = _apply(self._bottom, numbers)
            vectors = tf.concat([tf.cast(bottom, vectors.dtype)[:, None], vectors], 1)
        count = self._slots + dense
        dots = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, count * count])
        row, column = np.tril_indices(count, -1)
        features = [tf.gather(dots, (row * count + column).astype(np.int32), axis=1)]
        features.append(tf.reshape(vectors, [-1, count * self._options.width]))
        return self._score(tf.concat(features, 1))

    def _deepfm(self, vectors: Any, numbers: Any) -> Any:
        first, factors = vectors[:, :, 0], vectors[:, :, 1:]
        total = tf.reduce_sum(factors, 1)
        pairs = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(factors * factors, 1), 1)
        deep = [tf.reshape(factors, [-1, self._slots * self._options.width])]
        logit = tf.reduce_sum(first, 1) + pairs
        if numbers is not None:
            deep.append(tf.cast(numbers, factors.dtype))
            logit += self._first_order(numbers)[:, 0]
        return logit + self._score(tf.concat(deep, 1))

    def _score(self, features: Any) -> Any:
        return tf.cast(self._logit(_apply(self._top, features)), tf.float32)[:, 0]

    def _tower(self, sizes: List[int], name: str) -> List[Any]:
        return [self._dense(size, "relu", f"{name}_{i}") for i, size in enumerate(sizes)]

    def _dense(self, size: int, activation: Any, name: str) -> Any:
        self._dense_count += 1
        start = keras.initializers.glorot_uniform(self._seed * 1000 + self._dense_count)
        return keras.layers.Dense(size, activation, kernel_initializer=start, name=name)


def _apply(layers: List[Any], values: Any) -> Any:
    for layer in layers:
        values = layer(values)
    return values


def _sparse(ids: Any) -> Any:
    """Convert int64 [B, slots, values] to a SparseTensor [B * slots, values]; drop ids of -1."""
    shape = tf.shape(ids, out_type=tf.int64)
    flat = tf.reshape(ids, tf.stack([shape[0] * shape[1], shape[2]]))
    where = tf.where(flat >= 0)
    return tf.SparseTensor(where, tf.gather_nd(flat, where), tf.shape(flat, out_type=tf.int64))


def losses(labels: Any, logits: Any, weights: Any) -> Tuple[Any, Any, Any]:
    """Return mean loss and accuracy, float32 scalars, and the loss of each sample, float32 [B]."""
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    hits = tf.cast(tf.equal(logits > 0.0, labels > 0.5), tf.float32)
    return weighted_mean(each, weights), weighted_mean(hits, weights), each


def network(config: Any, columns: Columns, values: int, rows: Optional[str] = None) -> Any:
    """Build and return the placeholders (a dictionary), the model and its logits.

    ``values``: maximum number of ids per slot. ``rows``: name of the initializer of the table's
    rows; None = the embedding layer's default.
    """
    inputs = {
        "numbers": tf.placeholder(tf.float32, [None, columns.numbers], name="numbers"),
        "ids": tf.placeholder(tf.int64, [None, columns.slots, values], name="ids"),
    }
    options = config.model
    Init()
    # The same values on any number of ranks.
    table = DistributedEmbedding(
        "mean", options.rows, options.table_width, columns.slots, values, name="table",
        vocabulary_size=options.rows, seed=config.seed, average_gradients=False,
        embedding_initializer=rows,
    )  # fmt: skip
    model = Recommender(table, columns.slots, options, config.seed)
    return inputs, model, model.call(inputs["numbers"], inputs["ids"])
