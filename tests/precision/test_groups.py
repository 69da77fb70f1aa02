"""Variable groups: one decision, gradients paired by variable, sparse gradients kept sparse."""

import numpy as np
import pytest

from amp_xla.backend import keras, tf
from amp_xla.graph.nodes import downstream
from amp_xla.precision import DynamicLossScale
from amp_xla.precision.compat import sok
from amp_xla.precision.compat.sok import is_embedding_variable
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support.precision_training import same

VOCABULARY, WIDTH = 1009, 5


pytestmark = pytest.mark.usefixtures("graph")


def variables(order):
    """A bias (0), a kernel (1) and an embedding (2), created and listed in the given order."""
    shapes = {"bias": [2], "kernel": [WIDTH, 2], "embeddings": [VOCABULARY, WIDTH]}
    names = [list(shapes)[i] for i in order]
    start = {n: np.random.RandomState(3).randn(*shape) for n, shape in shapes.items()}
    return [tf.get_variable(n, initializer=tf.constant(start[n], tf.float32)) for n in names]


def forward(every, inputs):
    named = {v.op.name: v for v in every}
    return tf.nn.embedding_lookup(named["embeddings"], inputs) @ named["kernel"] + named["bias"]


ADAMS = {
    "tf.train": lambda: tf.train.AdamOptimizer(0.1),
    "keras": lambda: keras.optimizers.Adam(0.1),
}
ORDERS = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]  # the embedding last, in between and first


def trained(order, make, style, factors=(1.0, 1.0, np.inf, 1.0)):
    """Weights by name, and the counters, after steps taken in one of several styles."""
    config = tf.ConfigProto()  # without grappler, which rewrites Adam by what lies next to it
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        every = variables(order)
        optimizer = sok.LossScaleOptimizer(make(), DynamicLossScale(8.0, growth_interval=2))
        factor = tf.placeholder(tf.float32, [])
        logits = forward(every, tf.constant([1, 7, 7, 3]))
        # Only the embedding's gradient depends on the factor.
        table = next(v for v in every if is_embedding_variable(v))
        loss = tf.reduce_sum(tf.square(logits - 1.0))
        loss += tf.reduce_sum(tf.nn.embedding_lookup(table, [2])) * factor
        if style == "minimize":
            operation = optimizer.minimize(loss, every)
        else:
            scaled = optimizer.get_scaled_loss(loss)
            pairs = list(zip(tf.gradients(scaled, every), every))
            groups = sok.split_pairs(pairs)
            if style == "others first":
                groups = groups[::-1]
            unscaled = [optimizer.get_unscaled_gradients([g for g, _ in part]) for part in groups]
            groups = [list(zip(g, [v for _, v in part])) for g, part in zip(unscaled, groups)]
            operation = tf.group(*[optimizer.apply_gradients(part) for part in groups])
        session.run(tf.global_variables_initializer())
        for value in factors:
            session.run(operation, {factor: value})
        names = sorted(v.op.name for v in every)
        weights = session.run([next(v for v in every if v.op.name == n) for n in names])
        return weights, session.run(optimizer.state_variables)


@pytest.mark.parametrize("kind", sorted(ADAMS))
def test_order_and_style_change_nothing(kind):
    """Two applies a step equal one, Adam's step count included; inf in one group skips both."""
    weights, state = trained(ORDERS[0], ADAMS[kind], "minimize")
    assert state == [3, 1, 8.0, 1]
    styles = ("others first", "embeddings first", "minimize")
    for order, style in zip(ORDERS, styles):
        got, counters = trained(order, ADAMS[kind], style)
        assert same(got, weights) and counters == state, (order, style)


@pytest.mark.parametrize("accumulate, said", [
    (1, "Unscale all gradients first"), (2, "accumulate needs all variable groups in one"),
])  # fmt: skip
def test_a_group_after_the_decision_is_an_error(accumulate, said):
    every = variables(ORDERS[0])
    optimizer = LossScaleOptimizer(tf.train.AdamOptimizer(0.1), accumulate=accumulate)
    scaled = optimizer.get_scaled_loss(tf.reduce_sum(forward(every, tf.constant([1]))))
    grads = tf.gradients(scaled, every)
    unscaled = optimizer.get_unscaled_gradients(grads[:accumulate])
    optimizer.apply_gradients(zip(unscaled[:1], every))
    with pytest.raises(RuntimeError, match=said):
        if accumulate == 1:
            optimizer.get_unscaled_gradients(grads[1:])
        optimizer.apply_gradients(zip(unscaled[1:], every[1:]))


def test_several_optimizers_share_the_decision(session):
    every = variables(ORDERS[1])
    factor = tf.placeholder(tf.float32, [])
    logits = forward(every, tf.constant([1, 7]))
    loss = tf.reduce_sum(tf.square(logits)) + tf.reduce_sum(every[0]) * factor
    table = tf.train.GradientDescentOptimizer(0.5)
    rest = keras.optimizers.SGD(0.25)
    optimizer = LossScaleOptimizer(
        rest, DynamicLossScale(4.0), groups=[(is_embedding_variable, table)]
    )
    operation = optimizer.minimize(loss, every)
    grads = [tf.convert_to_tensor(g) for g in tf.gradients(loss, every)]
    session.run(tf.global_variables_initializer())
    before, slopes = session.run([every, grads], {factor: 1.0})
    session.run(operation, {factor: np.nan})
    assert same(before, session.run(every))
    session.run(operation, {factor: 1.0})
    for variable, old, new, slope in zip(every, before, session.run(every), slopes):
        rate = 0.5 if is_embedding_variable(variable) else 0.25
        np.testing.assert_allclose(new, old - rate * slope, rtol=1e-5, atol=1e-6)
    assert session.run(optimizer.state_variables) == [1, 1, 2.0, 1]


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: LossScaleOptimizer(it, 8.0)])
def test_a_step_may_wait_for_another_optimizers_step(session, wrap):
    factor, first = tf.placeholder(tf.float32, []), tf.Variable(1.0, use_resource=True)
    second = tf.Variable(1.0, use_resource=True)
    operation = wrap(tf.train.AdamOptimizer(0.1)).minimize(tf.square(first), var_list=[first])
    with tf.control_dependencies([operation]):
        loss = second * first.read_value() * factor
        step = LossScaleOptimizer(tf.train.GradientDescentOptimizer(1.0), 8.0)
        operation = step.minimize(loss, [second])
    session.run(tf.global_variables_initializer())
    for value, want in ((1.0, 0.1), (np.nan, 0.1), (1.0, -0.6)):
        session.run(operation, {factor: value})
        assert session.run(second) == pytest.approx(want, abs=1e-2)


@pytest.mark.parametrize("kind, clip", [("tf.train", 1.0), ("keras", None)])
def test_sparse_gradients_are_never_dense(session, graph, kind, clip):
    make = {"tf.train": tf.train.AdagradOptimizer, "keras": keras.optimizers.SGD}[kind]
    table, *_ = every = variables(ORDERS[2])
    optimizer = LossScaleOptimizer(make(0.1), "dynamic", global_clipnorm=clip)
    scaled = optimizer.get_scaled_loss(tf.reduce_sum(forward(every, tf.constant([1, 7, 7]))))
    grads = tf.gradients(scaled, every)
    sparse = grads[0] = tf.IndexedSlices(grads[0].values, grads[0].indices)  # without a shape
    unscaled = optimizer.get_unscaled_gradients(grads)
    assert isinstance(unscaled[0], tf.IndexedSlices)
    operation = optimizer.apply_gradients(zip(unscaled, every))
    assert not graph.as_graph_def().library.function  # whose operations would be out of sight
    readers = downstream([sparse.values.op, sparse.indices.op], set(graph.get_operations()))
    known = [out.shape for op in readers for out in op.outputs if out.shape.ndims is not None]
    assert len(readers) > 10 and [VOCABULARY, WIDTH] not in [s.as_list() for s in known]
    session.run(tf.global_variables_initializer())
    before = session.run(table)
    session.run(operation)
    moved = np.abs(session.run(table) - before).sum(axis=1)
    assert set(np.flatnonzero(moved)) == {1, 7}
