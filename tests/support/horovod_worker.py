"""One rank of two. `horovodrun -np 2 python -m tests.support.horovod_worker FOLDER`.

Each case writes the results of a rank to FOLDER/CASE-RANK.json; test_horovod.py compares them.
"""

import json
import sys

import numpy as np

from amp_xla.backend import K, keras, tf
from amp_xla.precision import DynamicLossScale, agreement
from amp_xla.precision.agreement import Reduction
from amp_xla.precision.compat import sok
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training import distributed

import horovod.tensorflow as hvd  # isort: skip  # after the backend has chosen graph mode

VOCABULARY, WIDTH = 20, 4
HEIGHT, COLUMNS, SCALE = 1000, 8, 2.0**15

STEPS = [1.0, np.nan, 1.0, np.inf, 1.0, 1.0]  # of rank 1; those of rank 0 are 1


def _problem():
    """Return two shared variables and between them a table of this rank, a factor, a loss."""
    rng = np.random.RandomState(0)
    table = np.random.RandomState(10 + hvd.rank()).randn(VOCABULARY, WIDTH)
    variables = [
        tf.get_variable("kernel", initializer=tf.constant(rng.randn(WIDTH, 1), tf.float32)),
        tf.get_variable("embedding/embeddings", initializer=tf.constant(table, tf.float32)),
        tf.get_variable("bias", initializer=tf.zeros([1])),
    ]
    factor = tf.placeholder(tf.float32, [])
    rows = tf.nn.embedding_lookup(variables[1], tf.constant([1 + hvd.rank(), 5]))
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, variables[0]) + variables[2] - 1.0))
    loss += tf.reduce_sum(tf.nn.embedding_lookup(variables[1], [3])) * factor
    return variables, factor, loss


def _trained(operation, optimizer, variables, factor):
    """Return weights and state after each step."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        seen = []
        for value in STEPS if hvd.rank() == 1 else [1.0] * len(STEPS):
            session.run(operation, {factor: value})
            weights = session.run(variables)
            state = session.run(optimizer.state_variables)
            seen.append({
                "shared": [w.tolist() for w in (weights[0], weights[2])],
                "own": weights[1].tolist(), "state": [float(v) for v in state if np.ndim(v) == 0],
            })  # fmt: skip
        return seen


def _minimized(make, kind=LossScaleOptimizer, **options):
    variables, factor, loss = _problem()
    optimizer = kind(make(), DynamicLossScale(8.0, growth_interval=2), **options)
    return _trained(optimizer.minimize(loss, variables), optimizer, variables, factor)


def sok_block(reduced=False):
    """Run the step of SparseOperationKit's documentation for TensorFlow 2."""
    variables, factor, loss = _problem()
    optimizer = sok.LossScaleOptimizer(adam(), DynamicLossScale(8.0, growth_interval=2))
    tables, others = sok.split_embedding_variable_from_others(variables)
    scaled = optimizer.get_scaled_loss(loss)
    of_tables = optimizer.get_unscaled_gradients(tf.gradients(scaled, tables))
    of_others = optimizer.get_unscaled_gradients(tf.gradients(scaled, others))
    if reduced:
        of_others = [hvd.allreduce(gradient) for gradient in of_others]
    first = optimizer.apply_gradients(
        zip(of_tables, tables), experimental_aggregate_gradients=False
    )
    with tf.control_dependencies([first]):
        operation = tf.group(first, optimizer.apply_gradients(zip(of_others, others)))
    return _trained(operation, optimizer, variables, factor)


def keras_distributed():
    import horovod.tensorflow.keras as hvd_keras

    return hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1, clipnorm=10.0))


def adam():
    return tf.train.AdamOptimizer(0.1)


OWN_TABLE = {"reduce": agreement.horovod_mean(hvd), "model_parallel": sok.is_embedding_variable}
CASES = {
    "reducing": lambda: _minimized(adam, agreement=agreement.horovod(hvd), **OWN_TABLE),
    # One norm of shared and model-parallel gradients of all ranks.
    "clipped": lambda: _minimized(
        lambda: tf.train.GradientDescentOptimizer(1.0), global_clipnorm=0.01, **OWN_TABLE
    ),
    # A window that is not finite on one rank is skipped on both.
    "accumulating": lambda: _minimized(adam, accumulate=2, **OWN_TABLE),
    # Horovod's own optimizer reduces every gradient while it computes them.
    "distributed": lambda: _minimized(lambda: hvd.DistributedOptimizer(adam())),
    # Horovod's Keras optimizer reduces in get_gradients and clips after it.
    "keras_distributed": lambda: _minimized(keras_distributed),
    # Shared gradients are averaged by default, and once more if the script averages them.
    "sok": sok_block,
    "sok_reduced": lambda: sok_block(True),
    "sok_minimized": lambda: _minimized(
        adam, sok.LossScaleOptimizer, model_parallel=sok.is_embedding_variable
    ),
    # Sums of all gradients: a NaN on one rank is one on both, without an agreement.
    "summed": lambda: _minimized(adam, agreement=None, reduce=Reduction(hvd)),
}


def sums():
    """Sum gradients of 1e-7 and larger ones in each compression, and rows of a table."""
    rng = np.random.RandomState(hvd.rank())
    tiny = tf.constant(np.full(7, 1e-7, np.float32))
    plain = tf.constant(rng.randn(5, 3) * 0.1, tf.float32)
    unscaled = hvd.allreduce(tf.cast(tiny, tf.float16), op=hvd.Sum)
    fetches = {"unscaled": tf.cast(unscaled, tf.float32), "mine": plain}
    for name in ("none", "fp16"):
        fetches[name] = Reduction(hvd, name)([tiny, plain], tf.constant(SCALE))
    ids = tf.constant(rng.randint(0, HEIGHT, 3000), tf.int64)  # different rows
    values = tf.constant(rng.randn(3000, COLUMNS), tf.float32)
    gradient = tf.IndexedSlices(values, ids, tf.constant([HEIGHT, COLUMNS], tf.int64))
    fetches["rows"] = tf.convert_to_tensor(Reduction(hvd)([gradient], tf.ones([]))[0])
    fetches["rows here"] = tf.convert_to_tensor(gradient)
    with tf.Session() as session:
        found = session.run(fetches)
    return tf.nest.map_structure(lambda array: array.tolist(), found)


def main():
    """Run each case in a new graph."""
    distributed.join()
    for name, case in {**CASES, "sums": sums}.items():
        K.clear_session()
        with tf.Graph().as_default():
            seen = case()
        with open(f"{sys.argv[1]}/{name}-{hvd.rank()}.json", "w") as file:
            json.dump(seen, file)


if __name__ == "__main__":
    main()
