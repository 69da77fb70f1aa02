"""LossScaleOptimizer in a v1 graph: what a step does, whatever optimizer is inside."""

from __future__ import annotations

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
        with pytest.raises(UnsupportedError, match=f"{name} is .* graph mode .*optimizers.legacy"):
            wrap(getattr(backend.tensorflow().keras.optimizers, name)(1e-3))


def test_gradients_that_were_never_unscaled_are_warned_of():
    optimizer = LossScaleOptimizer(tf.train.GradientDescentOptimizer(0.1), 8.0)
    x = tf.get_variable("x", initializer=1.0)
    grads = tf.gradients(optimizer.get_scaled_loss(x * 2.0), [x])
    with pytest.warns(LossScaleWarning, match="never unscaled"):
        optimizer.apply_gradients(zip(grads, [x]))


def test_clipping_by_a_norm_that_ranks_do_not_share_is_refused():
    inner, ours = tf.train.GradientDescentOptimizer(0.1), {"model_parallel": lambda v: True}
    with pytest.raises(ValueError, match="function `total`"):
        LossScaleOptimizer(inner, 8.0, 1.0, agreement=lambda finite: finite, **ours)
    LossScaleOptimizer(inner, 8.0, 1.0, **ours)  # one rank


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


def test_other_things_than_optimizers_and_no_gradients_are_refused():
    optimizer = LossScaleOptimizer(tf.train.AdamOptimizer())
    with pytest.raises(ValueError, match="no gradients"):
        optimizer.apply_gradients([])
    optimizers = backend.bert4keras("optimizers")
    accumulating = optimizers.extend_with_gradient_accumulation(optimizers.Adam)
    for inner, error, said in (
        (optimizer, ValueError, "already scales"),
        (accumulating(0.1, grad_accum_steps=4), ValueError, "pass accumulate=4 here"),
        (types.SimpleNamespace(get_updates=lambda *_: []), TypeError, "it has no apply_gradients"),
        (keras.optimizers.Adam, TypeError, r"class Adam; allowed: an instance, e.g. Adam\(1e-3\)"),
    ):
        with pytest.raises(error, match=said):
            LossScaleOptimizer(inner)


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
