"""A small training problem in a v1 graph, and the kinds of optimizers it is trained with."""

from typing import Any, NamedTuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.precision.optimizer import LossScaleOptimizer

ROWS, WIDTH = 13, 3


class Duck:
    """A wrapper as in libraries for distribution, with only apply_gradients."""

    def __init__(self):
        self._inner = tf.train.MomentumOptimizer(0.1, 0.9)

    def apply_gradients(self, grads_and_vars):
        return self._inner.apply_gradients(grads_and_vars)

    def variables(self):
        return self._inner.variables()


optimizers = backend.bert4keras("optimizers")


def extended(rate, **extensions):
    """Return a function that makes Adam with bert4keras' ``extend_with_*``, by their arguments."""

    def make():
        kind, arguments = optimizers.Adam, {"learning_rate": rate}
        for name, values in extensions.items():
            kind = getattr(optimizers, f"extend_with_{name}")(kind, name=f"{name}_{kind.__name__}")
            arguments.update(values)
        return kind(**arguments)

    return make


# bert4keras' rules, by what they add: rates per weight and step, or state.
BERT4KERAS = {
    "rates": extended(
        1e-2,
        weight_decay={"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]},
        layer_adaptation={"exclude_from_layer_adaptation": ["bias"]},
        parameter_wise_lr={"paramwise_lr_schedule": {"Embedding": 0.5}},
        piecewise_linear_lr={"lr_schedule": {5: 1, 15: 0.1}},
    ),
    "states": extended(
        1e-2,
        lazy_optimization={"include_in_lazy_optimization": ["Embedding"]},
        exponential_moving_average={"ema_momentum": 0.9},
    ),
    "factor": lambda: optimizers.AdaFactor(learning_rate=1e-2, beta1=0.9),
}
KINDS = {
    "tf.train adam": lambda: tf.train.AdamOptimizer(0.1),
    "tf.train sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "keras adam": lambda: keras.optimizers.Adam(0.1),
    "keras momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "bert4keras adamw": extended(
        0.1, weight_decay={"weight_decay_rate": 0.01},
        piecewise_linear_lr={"lr_schedule": {4: 1, 8: 0.1}},
    ),
    "duck": Duck,
}  # fmt: skip


class Problem(NamedTuple):
    """Rows of an embedding times a matrix; ``factor`` is a placeholder that scales the loss."""

    table: Any
    kernel: Any
    factor: Any
    loss: Any

    @property
    def variables(self):
        return [self.table, self.kernel]


def problem():
    """Build the problem in the default graph, with fixed numbers and a sparse gradient."""
    rng = np.random.RandomState(0)
    table = tf.get_variable("table", initializer=tf.constant(rng.randn(ROWS, WIDTH), tf.float32))
    kernel = tf.get_variable("kernel", initializer=tf.constant(rng.randn(WIDTH, 2), tf.float32))
    factor = tf.placeholder(tf.float32, [])
    rows = tf.nn.embedding_lookup(table, tf.constant([1, 5, 5, 2]))
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, kernel) - 1.0)) * factor
    return Problem(table, kernel, factor, loss)


class Trainer:
    """A session that runs steps and reads variables."""

    def __init__(self, session, task, optimizer, operation):
        self.session, self.task = session, task
        self.optimizer, self.operation = optimizer, operation
        session.run(tf.global_variables_initializer())

    def step(self, factor=1.0, fetch=()):
        return self.session.run([self.operation, fetch], {self.task.factor: factor})[1]

    def weights(self):
        return self.session.run(self.task.variables)

    def everything(self):
        """Return all variables of the graph except the wrapper's counters and scale."""
        own = {id(v) for v in getattr(self.optimizer, "state_variables", [])}
        every = sorted(tf.global_variables(), key=lambda v: v.name)
        return self.session.run([v for v in every if id(v) not in own])

    def state(self):
        return self.session.run(self.optimizer.state_variables)


def same(a, b):
    """Return whether two lists of arrays are equal bit for bit."""
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


def minimized(session, inner, scale=8.0, **options):
    """Wrap an optimizer and return a trainer of the problem."""
    task = problem()
    optimizer = LossScaleOptimizer(inner, scale, **options)
    return Trainer(session, task, optimizer, optimizer.minimize(task.loss, task.variables))
