"""LossScaleOptimizer in a v1 graph: what a step or a window does, whatever optimizer is inside."""

import types
import warnings

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.errors import UnsupportedError
from amp_xla.precision import (
    DynamicLossScale,
    LossScaleWarning,
    NoOpLossScale,
    StaticLossScale,
)
from amp_xla.precision.compat.keras import LossScaleOptimizer as DropIn
from amp_xla.precision.compat.sok import LossScaleOptimizer as SokOptimizer
from amp_xla.precision.optimizer import LossScaleOptimizer, scale_loss
from tests.support.precision_training import KINDS, Trainer, minimized, problem, same

pytestmark = [
    pytest.mark.usefixtures("graph"),
    pytest.mark.filterwarnings("ignore:non-finite gradients under the constant"),
]
BAD = (np.inf, -np.inf, np.nan)
optimizers = backend.bert4keras("optimizers")


def plain(session, inner):
    """Return the same problem without the wrapper."""
    task = problem()
    if hasattr(inner, "get_updates"):  # Keras: with its clipping
        operation = tf.group(*inner.get_updates(task.loss, task.variables))
    else:
        pairs = list(zip(tf.gradients(task.loss, task.variables), task.variables))
        operation = inner.apply_gradients(pairs)
    return Trainer(session, task, inner, operation)


@pytest.mark.parametrize("kind, bad", zip(sorted(KINDS), BAD * 2))
def test_steps_are_the_optimizers_own_to_the_bit_and_a_bad_one_changes_nothing(session, kind, bad):
    trainer = minimized(session, KINDS[kind](), DynamicLossScale(8.0, growth_interval=3))
    fetches = [trainer.optimizer.gradients_finite, trainer.optimizer.loss_scale]
    trainer.step()
    before = trainer.everything()
    assert trainer.step(bad, fetches) == [False, 8.0]
    assert same(before, trainer.everything()) and trainer.state() == [1, 1, 4.0, 0]
    assert trainer.step(1.0, fetches) == [True, 4.0]
    assert not same(before, trainer.everything())
    for _ in range(4):
        trainer.step()
    assert trainer.state() == [6, 1, 8.0, 2]
    found = trainer.weights()
    with tf.Graph().as_default(), tf.Session() as session:
        theirs = plain(session, KINDS[kind]())
        for _ in range(6):
            theirs.step()
        assert same(found, theirs.weights())


def test_scale_loss_takes_tensors_and_keras_losses(session):
    assert session.run(scale_loss(tf.constant(4.0, tf.float16), 2**15)) == 2.0**17
    mse = scale_loss(lambda y_true, y_pred: tf.square(y_true - y_pred), 10)
    assert session.run(mse(tf.constant(1.0), tf.constant(3.0))) == 40.0
    for loss, scale in ((1.0, 0), (1.0, -1), (1.0, np.inf), (1.0, np.nan), ("mse", 10)):
        with pytest.raises(ValueError, match="loss_scale is|loss is the name 'mse'"):
            scale_loss(loss, scale)


@pytest.mark.parametrize("name, value", [("clipnorm", 0.05), ("clipvalue", 0.02)])
def test_the_optimizers_clipping_comes_after_unscaling(name, value):
    def weights(optimize):
        with tf.Graph().as_default(), tf.Session() as session:
            trainer = optimize(session, keras.optimizers.SGD(0.1, **{name: value}))
            for _ in range(3):
                trainer.step()
            return trainer.weights()

    assert same(weights(plain), weights(lambda s, i: minimized(s, i, 1024.0)))


@pytest.mark.parametrize(
    "scale, clipnorm, factor", [(None, None, np.inf), (1000.0, None, np.nan), (1.0, 1.0, 1e25)],
    ids=["no scale", "constant scale", "finite gradients of infinite norm"],
)  # fmt: skip
def test_other_skipped_steps(session, scale, clipnorm, factor):
    trainer = minimized(session, tf.train.AdamOptimizer(0.1), scale, global_clipnorm=clipnorm)
    before = trainer.weights()
    trainer.step(factor)
    assert same(before, trainer.weights()) and trainer.state() == [0, 1]


@pytest.mark.skipif(backend.kind() == "tf1", reason="Keras of 1.15 has none of them")
@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "Lion"])
def test_newer_keras_optimizers_are_refused_in_graph_mode(name):
    for wrap in (LossScaleOptimizer, DropIn, SokOptimizer):
        with pytest.raises(UnsupportedError, match=f"{name} is .* graph mode, .*optimizers.legacy"):
            wrap(getattr(backend.tensorflow().keras.optimizers, name)(1e-3))


@pytest.mark.parametrize("name, values", [
    ("loss.scale", (True, False, 0, -1, np.nan, "fast")),
    ("global_clipnorm", (-1, 0, np.nan, np.inf)), ("accumulate", (0, -2, 1.5, "2")),
    ("warn_after", (-1, 2.5, np.nan, True, "10")),
])  # fmt: skip
def test_impossible_options_are_refused(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"{name} is"):
            LossScaleOptimizer(tf.train.AdamOptimizer(), **{name.replace(".", "_"): value})


@pytest.mark.parametrize("wrap", [LossScaleOptimizer, SokOptimizer])
def test_tensorflows_loss_scale_objects_are_taken(wrap):
    scales = tf.train.experimental if backend.kind() == "tf1" else tf.mixed_precision
    inner = tf.train.GradientDescentOptimizer(0.1)
    fixed = wrap(inner, scales.FixedLossScale(128)).loss_scale_at_start
    assert fixed == StaticLossScale(128)
    assert wrap(inner, scales.FixedLossScale(1)).loss_scale_at_start == NoOpLossScale()
    dynamic = wrap(inner, scales.DynamicLossScale(0.5, 7, 4.0)).loss_scale_at_start
    assert dynamic == DynamicLossScale(0.5, growth_interval=7, growth_factor=4.0, minimum=0.5)
    with pytest.raises(ValueError, match="loss scale is .*allowed: a positive number or 'dynamic'"):
        wrap(inner, keras.layers.Dense(1))


def test_sok_takes_tensorflow_2s_arguments():
    for arguments, named, scale, steps in (
        ((8,), {"dynamic_growth_steps": 3}, 8, 3), ((None, 3), {}, 2**15, 3), ((8, 3), {}, 8, 3),
    ):  # fmt: skip
        made = SokOptimizer(keras.optimizers.SGD(0.1), True, *arguments, **named)
        assert made.loss_scale_at_start == DynamicLossScale(scale, growth_interval=steps)
    with pytest.raises(ValueError, match="dynamic_growth_steps is 2.7; allowed: a whole"):
        DropIn(keras.optimizers.SGD(0.1), True, 8.0, 2.7)


def test_other_things_than_optimizers_and_no_gradients_are_refused():
    optimizer = LossScaleOptimizer(tf.train.AdamOptimizer())
    with pytest.raises(ValueError, match="no gradients"):
        optimizer.apply_gradients([])
    accumulating = optimizers.extend_with_gradient_accumulation(optimizers.Adam)
    for inner, error, said in (
        (optimizer, ValueError, "already scales"),
        (accumulating(0.1, grad_accum_steps=4), ValueError, "pass accumulate=4 here"),
        (types.SimpleNamespace(get_updates=lambda *_: []), TypeError, "it has no apply_gradients"),
        (keras.optimizers.Adam, TypeError, r"class Adam; allowed: an instance, e.g. Adam\(1e-3\)"),
    ):
        with pytest.raises(error, match=said):
            LossScaleOptimizer(inner)
    inner, ours = tf.train.GradientDescentOptimizer(0.1), {"model_parallel": lambda v: True}
    with pytest.raises(ValueError, match="function `total`"):
        LossScaleOptimizer(inner, 8.0, 1.0, agreement=lambda finite: finite, **ours)
    LossScaleOptimizer(inner, 8.0, 1.0, **ours)  # one rank
    optimizer = LossScaleOptimizer(tf.train.GradientDescentOptimizer(0.1), 8.0)
    x = tf.get_variable("x", initializer=1.0)
    grads = tf.gradients(optimizer.get_scaled_loss(x * 2.0), [x])
    with pytest.warns(LossScaleWarning, match="never unscaled"):
        optimizer.apply_gradients(zip(grads, [x]))


def test_warnings_reach_the_session_that_runs_the_step(session):
    scale = DynamicLossScale(2.0)
    trainer = minimized(session, KINDS["tf.train sgd"](), scale, warn_after=2)
    for factor in (np.nan, np.nan, 1.0, np.nan):  # a good step ends the streak
        trainer.step(factor)
    with pytest.warns(LossScaleWarning, match="at its minimum, 1, for 2 steps"):
        trainer.step(np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(np.nan)  # no second warning
    for constant, said in ((1000.0, "constant loss scale 1000: .* lower"), (None, "search for")):
        with tf.Graph().as_default(), tf.Session() as session:
            trainer = minimized(session, KINDS["tf.train sgd"](), constant)
            with pytest.warns(LossScaleWarning, match=said):
                trainer.step(np.nan)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_window_is_one_step_with_the_mean_gradient(session, kind):
    trainer = minimized(session, KINDS[kind](), accumulate=2)
    for _ in range(6):
        for factor in (0.5, 1.5):
            trainer.step(factor)
    assert trainer.state() == [6, 0]  # applied, skipped; no sums between updates
    found = trainer.weights()
    with tf.Graph().as_default(), tf.Session() as session:
        theirs = plain(session, KINDS[kind]())
        for _ in range(6):  # bert4keras' rate follows the applied steps
            theirs.step()
        for ours, want in zip(found, theirs.weights()):
            np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factors", [[1.0], [1.0, 3.0]])
def test_clipping_is_of_the_window_mean(session, factors):
    """Its norm is that of dense gradients: a row of the table occurs twice in the batch."""
    inner = tf.train.GradientDescentOptimizer(1.0)
    trainer = minimized(session, inner, 1024.0, accumulate=len(factors), global_clipnorm=1e-3)
    task, before = trainer.task, trainer.weights()
    dense = [tf.convert_to_tensor(g) for g in tf.gradients(task.loss, task.variables)]
    expected = session.run(tf.global_norm(dense), {task.factor: np.mean(factors)})
    for factor in factors:
        norm = trainer.step(factor, trainer.optimizer.gradient_norm)
    assert norm == pytest.approx(expected, rel=1e-6) and norm > 1e-3
    moved = [a - b for a, b in zip(before, trainer.weights())]
    length = np.sqrt(sum(float((d**2).sum()) for d in moved))
    assert length == pytest.approx(1e-3, rel=1e-2)


def test_ranks_reduce_once_a_window(session):
    calls = tf.get_variable("calls", initializer=0, trainable=False)

    def reduce(gradient):
        with tf.control_dependencies([calls.assign_add(1)]):
            return tf.identity(gradient)

    trainer = minimized(session, KINDS["tf.train sgd"](), accumulate=3, reduce=reduce)
    for _ in range(6):
        trainer.step()
    assert session.run(calls) == 2 * len(trainer.task.variables)


def averaged(base, outer=()):
    """Extend a class by averages, and these by ``outer``."""
    cls = optimizers.extend_with_exponential_moving_average(base, name="Averaged")
    for kind in outer:
        cls = getattr(optimizers, f"extend_with_{kind}")(cls, name=f"Averaged_{kind}")
    return cls(learning_rate=0.01, ema_momentum=0.9)


@pytest.mark.parametrize("make, wrapped", [
    (lambda: averaged(optimizers.extend_with_weight_decay(optimizers.Adam)), True),
    (lambda: averaged(optimizers.Adam, ["weight_decay", "piecewise_linear_lr"]), False),
    (lambda: averaged(keras.optimizers.SGD), True),
], ids=["above weight decay", "below two", "keras sgd"])  # fmt: skip
def test_embeddings_are_averaged_once_per_step(cleared, make, wrapped):
    model = keras.models.Sequential([
        keras.layers.Embedding(10, 4, input_length=3), keras.layers.Flatten(),
        keras.layers.Dense(1),
    ])  # fmt: skip
    optimizer = make()
    model.compile(LossScaleOptimizer(optimizer, 1000) if wrapped else optimizer, "mse")
    means = [0.0 * weight for weight in model.get_weights()]
    for _ in range(4):
        model.train_on_batch(np.arange(9).reshape(3, 3) % 7, np.ones([3, 1]))  # rows twice
        means = [0.9 * mean + 0.1 * w for mean, w in zip(means, model.get_weights())]
    optimizer.apply_ema_weights()
    for seen, mean in zip(model.get_weights(), means):
        np.testing.assert_allclose(seen, mean / (1 - 0.9**4), rtol=1e-5)


def test_lookahead_which_halves_all_weights_is_refused():
    decay = optimizers.extend_with_weight_decay(optimizers.Adam)
    for extend, base in (
        (optimizers.extend_with_lookahead, decay),
        (optimizers.extend_with_lookahead_v2, keras.optimizers.Adam),
    ):
        with pytest.raises(UnsupportedError, match="at 0, so .* halve all weights; remove it"):
            extend(base, name="L")(learning_rate=1e-3)
