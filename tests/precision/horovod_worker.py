"""One rank of two. `horovodrun -np 2 python -m tests.precision.horovod_worker FOLDER`.

Each case leaves what a rank saw in FOLDER/CASE-RANK.json; test_horovod.py compares the ranks.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List

import numpy as np

from amp_xla.backend import K, keras, tf
from amp_xla.precision import DynamicLossScale, agreement
from amp_xla.precision.compat import sok
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.precision.reduction import Reduction
from amp_xla.training import distributed

import horovod.tensorflow as hvd  # isort: skip  # after the backend has chosen graph mode

VOCABULARY, WIDTH = 20, 4
HEIGHT, COLUMNS, SCALE = 1000, 8, 2.0**15
Seen = List[Dict[str, Any]]


def model_variables() -> List[Any]:
    """A table that belongs to this rank, in the middle of variables that all ranks share."""
    rng, own = np.random.RandomState(0), np.random.RandomState(10 + hvd.rank())
    return [
        tf.get_variable("kernel", initializer=tf.constant(rng.randn(WIDTH, 1), tf.float32)),
        tf.get_variable(
            "embedding/embeddings",
            initializer=tf.constant(own.randn(VOCABULARY, WIDTH), tf.float32),
        ),
        tf.get_variable("bias", initializer=tf.zeros([1])),
    ]


def run(steps: Any, operation: Any, factor: Any, optimizer: Any, variables: List[Any]) -> Seen:
    """Takes steps with the given factors and looks at everything after each."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        seen: Seen = []
        for value in steps:
            session.run(operation, {factor: value})
            weights = session.run(variables)
            state = session.run(optimizer.state_variables)
            seen.append(
                {
                    "shared": [w.tolist() for w in (weights[0], weights[2])],
                    "own": weights[1].tolist(),
                    "state": [float(v) for v in state if np.ndim(v) == 0],
                }
            )
        return seen


def on_rank_one(values: List[float]) -> List[float]:
    """The values on rank 1, ones on rank 0."""
    return values if hvd.rank() == 1 else [1.0] * len(values)


STEPS = [1.0, np.nan, 1.0, np.inf, 1.0, 1.0]


def document() -> Seen:
    """SparseOperationKit's TensorFlow 1.15 step: tf.gradients, Horovod, two applies.

    Adapted in its import line and where it slices gradients by position, which is right only if
    embedding variables come first (here they do not).
    """
    optimizer = keras.optimizers.Adam(0.1)  # could be other optimizers as well
    optimizer = sok.tf.keras.mixed_precision.LossScaleOptimizer(
        optimizer, DynamicLossScale(8.0, growth_interval=2)
    )
    variables = model_variables()
    factor = tf.placeholder(tf.float32, [])

    def loss_object(y: Any, predictions: Any) -> Any:
        # Only the embedding's gradient sees the factor.
        return tf.reduce_mean(tf.square(predictions - y))

    def train_step(x: Any, y: Any) -> Any:
        rows = tf.nn.embedding_lookup(variables[1], x)
        predictions = tf.matmul(rows, variables[0]) + variables[2]
        only_own = tf.reduce_sum(tf.nn.embedding_lookup(variables[1], [3])) * factor
        loss = loss_object(y, predictions) + only_own
        # use this API to get scaled loss value
        scaled_loss = optimizer.get_scaled_loss(loss)
        emb_variables, other_variables = sok.split_embedding_variable_from_others(variables)
        scaled_gradients = tf.gradients(scaled_loss, emb_variables + other_variables)
        # distinguish embedding variables and other variables
        # because they need different processing.
        scaled_emb_gradients, scaled_other_gradients = (
            scaled_gradients[: len(emb_variables)],
            scaled_gradients[len(emb_variables) :],
        )
        # use this API to scale embedding gradients back to correct value
        emb_gradients = optimizer.get_unscaled_gradients(scaled_emb_gradients)
        # use this API to scale other gradients back to correct value
        other_gradients = optimizer.get_unscaled_gradients(scaled_other_gradients)
        other_gradients = [hvd.allreduce(grad) for grad in other_gradients]
        emb_train_op = optimizer.apply_gradients(zip(emb_gradients, emb_variables))
        other_train_op = optimizer.apply_gradients(zip(other_gradients, other_variables))
        with tf.control_dependencies([emb_train_op, other_train_op]):
            return tf.identity(loss)

    step = train_step(tf.constant([1 + hvd.rank(), 5]), tf.constant([[1.0], [-1.0]]))
    return run(on_rank_one(STEPS), step, factor, optimizer, variables)


def _minimized(make: Callable[[], Any], **options: Any) -> Seen:
    variables = model_variables()
    factor = tf.placeholder(tf.float32, [])
    rows = tf.nn.embedding_lookup(variables[1], tf.constant([1 + hvd.rank(), 5]))
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, variables[0]) + variables[2] - 1.0))
    loss += tf.reduce_sum(tf.nn.embedding_lookup(variables[1], [3])) * factor
    scale = DynamicLossScale(8.0, growth_interval=2)
    optimizer = LossScaleOptimizer(make(), scale, **options)
    operation = optimizer.minimize(loss, variables)
    return run(on_rank_one(STEPS), operation, factor, optimizer, variables)


def keras_distributed() -> Any:
    import horovod.tensorflow.keras as hvd_keras

    return hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1, clipnorm=10.0))


def adam() -> Any:
    return tf.train.AdamOptimizer(0.1)


OWN_TABLE = {
    "reduce": agreement.horovod_mean(hvd),
    "model_parallel": sok.is_embedding_variable,
}
CASES: Dict[str, Callable[[], Seen]] = {
    "document": document,
    "reducing": lambda: _minimized(adam, agreement=agreement.horovod(hvd), **OWN_TABLE),
    # One norm of shared and model-parallel gradients of all ranks.
    "clipped": lambda: _minimized(
        lambda: tf.train.GradientDescentOptimizer(1.0), global_clipnorm=0.01, **OWN_TABLE
    ),
    # A window that is bad on one rank is skipped on both.
    "accumulating": lambda: _minimized(adam, accumulate=2, **OWN_TABLE),
    # Horovod's own optimizer reduces every gradient while it computes them.
    "distributed": lambda: _minimized(lambda: hvd.DistributedOptimizer(adam())),
    # Horovod's Keras optimizer reduces in get_gradients and clips after it.
    "keras_distributed": lambda: _minimized(keras_distributed),
    # Sums of all gradients: a NaN on one rank is one on both, without an agreement.
    "summed": lambda: _minimized(adam, agreement=None, reduce=Reduction(hvd)),
}


def sums() -> Dict[str, Any]:
    """Sums of gradients of 1e-7 and of ordinary ones, in each compression; of rows of a table."""
    rng = np.random.RandomState(hvd.rank())
    tiny = tf.constant(np.full(7, 1e-7, np.float32))
    plain = tf.constant(rng.randn(5, 3) * 0.1, tf.float32)
    unscaled = hvd.allreduce(tf.cast(tiny, tf.float16), op=hvd.Sum)
    fetches = {"unscaled": tf.cast(unscaled, tf.float32), "mine": plain}
    for name in ("none", "fp16", "bf16"):
        reduction = Reduction(hvd, name)
        reduction.loss_scale = lambda: tf.constant(SCALE)
        fetches[name] = reduction([tiny, plain])
    for name, count in (("few", 20), ("many", 3000)):  # different rows
        ids = tf.constant(rng.randint(0, HEIGHT, count), tf.int64)
        values = tf.constant(rng.randn(count, COLUMNS), tf.float32)
        gradient = tf.IndexedSlices(values, ids, tf.constant([HEIGHT, COLUMNS], tf.int64))
        (fetches[name],) = Reduction(hvd)([gradient])
        fetches[name + " here"] = tf.math.unsorted_segment_sum(values, ids, HEIGHT)
    with tf.Session() as session:
        found = session.run(fetches)
    return tf.nest.map_structure(lambda array: array.tolist(), found)


def exchanged(ranks: Any) -> Dict[str, Any]:
    """Python values from all ranks; the message about a tensor that differs on one."""
    arrays = [np.ones(3), np.full(2, float(hvd.rank())), np.zeros(1)]
    try:
        ranks.compare(["same", "other", "last"], arrays)
        differing = ""
    except distributed.RanksDiffer as error:
        differing = str(error)
    return {
        "differing": differing,
        "gathered": ranks.gather({"rank": hvd.rank(), "text": "ä" * hvd.rank()}),
        "first": ranks.from_first(lambda: f"of rank {hvd.rank()}"),
        "all": ranks.all_do(lambda: hvd.rank() * 10),
        "total": ranks.total(np.arange(4).reshape(2, 2) + hvd.rank()).tolist(),
    }


def main() -> None:
    """Runs every case, each in a graph of its own."""
    ranks = distributed.join()
    cases = {**CASES, "sums": sums, "exchanged": lambda: exchanged(ranks)}
    for name, case in cases.items():
        K.clear_session()
        with tf.Graph().as_default():
            seen = case()
        with open(f"{sys.argv[1]}/{name}-{hvd.rank()}.json", "w") as file:
            json.dump(seen, file)


if __name__ == "__main__":
    main()
