"""GradientTape loops, eagerly and in tf.function, around every kind of optimizer."""

import importlib

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.precision import DynamicLossScale, LossScaleWarning
from amp_xla.precision.compat import sok
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.precision.eager.conftest import take_step

tf = backend.tensorflow()
TF1 = backend.kind() == "tf1"
legacy = tf.keras.optimizers if TF1 else tf.keras.optimizers.legacy

pytestmark = pytest.mark.filterwarnings("ignore:non-finite gradients under the constant")

KINDS = {
    "keras legacy": lambda: legacy.Adam(0.05),
    "keras": lambda: tf.keras.optimizers.Adam(0.05),
    "keras 3": lambda: importlib.import_module("keras").optimizers.Adam(0.05),
    "tf.train": lambda: tf.compat.v1.train.AdamOptimizer(0.05),
}
MODES = {"eager": lambda f: f, "function": tf.function}

RNG = np.random.RandomState(0)
X = RNG.randn(16, 4).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


def variables():
    rng = np.random.RandomState(1)
    return [tf.Variable(rng.randn(4, 1).astype("float32")), tf.Variable([0.0])]


def loss_of(weights, factor):
    logits = tf.matmul(X, weights[0]) + weights[1]
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=logits)
    return tf.reduce_mean(losses) * factor


def values(weights):
    return [w.numpy() for w in weights]


def step_of(optimizer, weights, mode, style="by hand"):
    """Return a step whose arguments are a factor of the loss and what is added to it."""

    def step(factor, shift):
        take_step(optimizer, lambda: loss_of(weights, factor) + shift, weights, style)

    step = MODES[mode](step)
    return lambda *numbers: step(*(tf.constant(number, tf.float32) for number in numbers))


LOOPS = [
    ("keras legacy", "function", "callable"), ("keras", "function", "by hand"),
    ("keras", "function", "tape"), ("tf.train", "eager", "by hand"), ("keras 3", "eager", "tape"),
]  # fmt: skip


@pytest.mark.parametrize("kind, mode, style", LOOPS[:-1] if TF1 else LOOPS)
def test_trains_as_without_and_skips(kind, mode, style):
    weights, plain = variables(), variables()
    scale = DynamicLossScale(2.0**10, growth_interval=3)
    optimizer, bare = LossScaleOptimizer(KINDS[kind](), scale), KINDS[kind]()
    step = step_of(optimizer, weights, mode, style)
    for number in range(6):
        if number == 3:
            before = values(weights)
            for bad in ((np.inf, 0.0), (np.nan, 0.0), (1.0, np.inf)):  # at last: finite gradients
                step(*bad)
                assert all(np.array_equal(a, b) for a, b in zip(before, values(weights)))
        step(1.0, 0.0)
        with tf.GradientTape() as tape:
            loss = loss_of(plain, 1.0)
        bare.apply_gradients(zip(tape.gradient(loss, plain), plain))
    for ours, theirs in zip(values(weights), values(plain)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    # Three finite steps doubled it, three bad ones halved it each, three more doubled it.
    assert float(optimizer.loss_scale) == 2.0**9
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (6, 3)
    assert int(np.asarray(optimizer.iterations)) == 6


def test_accumulation_in_a_function():
    weights, whole = variables(), variables()
    optimizer = LossScaleOptimizer(legacy.Adam(0.05), 8.0, accumulate=2)
    once = LossScaleOptimizer(legacy.Adam(0.05), 8.0)
    step = step_of(optimizer, weights, "function")
    for factor in (0.5, 1.5, np.inf, 1.0, 1.0, 1.0):
        step(factor, 0.0)
    for _ in range(2):
        once.minimize(lambda: loss_of(whole, 1.0), whole)
    for ours, theirs in zip(values(weights), values(whole)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (2, 1)


@pytest.mark.parametrize(
    "mode, given",
    [("eager", "first result"), ("function", "some"), ("function", "of compute_gradients")],
)
def test_unscaling_twice_is_refused(mode, given):
    weights, optimizer = variables(), LossScaleOptimizer(legacy.Adam(0.05), 8.0)

    def step():
        with tf.GradientTape() as tape:
            scaled = optimizer.get_scaled_loss(loss_of(weights, 1.0))
        if given == "of compute_gradients":
            grads = [
                g for g, _ in optimizer.compute_gradients(lambda: loss_of(weights, 1.0), weights)
            ]
        else:
            grads = optimizer.get_unscaled_gradients(tape.gradient(scaled, weights))
        optimizer.get_unscaled_gradients(grads[1:] if given == "some" else grads)

    with pytest.raises(RuntimeError, match="already unscaled; unscale each gradient once"):
        MODES[mode](step)()


@pytest.mark.parametrize("bad, unscales", [([float("nan")], True), ((float("-inf"),), False)])
def test_gradients_of_python_numbers_are_checked(bad, unscales):
    bias = tf.Variable([1.0])
    optimizer = LossScaleOptimizer(legacy.SGD(1.0), 8.0)
    for gradient, want in ((bad, 1.0), ([4.0], 0.5 if unscales else -3.0)):
        if unscales:
            optimizer.get_scaled_loss(tf.constant(1.0))
            (gradient,) = optimizer.get_unscaled_gradients([gradient])
        optimizer.apply_gradients([(gradient, bias)])
        assert bias.numpy().tolist() == [want]
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (1, 1)


@pytest.mark.parametrize("clip", ["clipnorm", "clipvalue"] + ([] if TF1 else ["global_clipnorm"]))
@pytest.mark.parametrize("kind", ["keras legacy"] + ([] if TF1 else ["keras", "keras 3"]))
def test_half_precision_is_clipped_in_float32(kind, clip):
    weights = [tf.Variable(tf.ones([10000], dtype)) for dtype in (tf.float16, tf.float32)]
    inner = type(KINDS[kind]())(**{clip: 1.0})  # Adam, whose first step is 0 if its gradient is
    pairs = [(tf.constant(300.0, w.dtype, [10000]), w) for w in weights]
    LossScaleOptimizer(inner, 8.0).apply_gradients(pairs)
    for weight in weights:
        np.testing.assert_allclose(weight.numpy(), 0.999, rtol=5e-4)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_layer_that_has_updated_in_a_skipped_step_is_named(mode):
    gamma = tf.Variable([1.0], name="batch_normalization/gamma")
    optimizer = LossScaleOptimizer(legacy.SGD(1.0), "dynamic")
    with pytest.warns(LossScaleWarning, match="the weight batch_normalization/gamma:0 had"):
        MODES[mode](lambda: optimizer.minimize(lambda: gamma * np.nan, [gamma]))()


def test_two_groups_are_one_step_of_a_newer_optimizer():
    """The two updates of SparseOperationKit's step, whose whole example tests/sok runs."""
    table, kernel = tf.Variable(tf.ones([50, 8]), name="embeddings"), tf.Variable(tf.ones([8, 1]))
    groups = sok.split_embedding_variable_from_others([table, kernel])
    assert [len(group) for group in groups] == [1, 1]

    inner = tf.keras.optimizers.Adam(0.05)
    optimizer = sok.LossScaleOptimizer(inner, True, 2.0**8, 2)  # in TensorFlow 2's order

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.gather(table, [1, 7, 7]) @ kernel))
            scaled = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled, groups)
        unscaled = [optimizer.get_unscaled_gradients(part) for part in scaled_gradients]
        for part, group in zip(unscaled, groups):
            optimizer.apply_gradients(zip(part, group), experimental_aggregate_gradients=False)

    optimizer.build([table, kernel])
    train_step = tf.function(step)
    for _ in range(20):
        train_step()
    assert int(optimizer.applied_steps) == int(optimizer.iterations) == 20
    assert float(optimizer.loss_scale) == 2.0**18  # ten growths in twenty steps, not twenty
