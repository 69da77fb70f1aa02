"""The drop-in for Keras' LossScaleOptimizer, beside Keras' own, eagerly and in tf.function.

Keras' own tests (``keras_own_suite``) have its attributes, strategies and older configurations.
"""

from __future__ import annotations

import copy
import importlib

import numpy as np
import pytest
import tf_keras
from tf_keras.src.mixed_precision import loss_scale_optimizer as source

from amp_xla import backend
from amp_xla.precision import DynamicLossScale, LossScaleWarning
from amp_xla.precision import optimizer as wrapper
from amp_xla.precision.compat.keras import CUSTOM_OBJECTS, LossScaleOptimizer, set_policy

tf = backend.tensorflow()
keras3 = importlib.import_module("keras")
Theirs = tf_keras.mixed_precision.LossScaleOptimizer
CLASSES = {"ours": LossScaleOptimizer, "theirs": Theirs}


def wrapped(inner, initial_scale, dynamic_growth_steps):
    """The optimizer that is no drop-in."""
    scale = DynamicLossScale(initial_scale, growth_interval=dynamic_growth_steps)
    return wrapper.LossScaleOptimizer(inner, scale)


MAKES = {**CLASSES, "wrapper": wrapped}
FAMILIES = {"legacy": tf_keras.optimizers.legacy, "new": tf_keras.optimizers}
OWN = {"legacy": source.LossScaleOptimizer, "new": source.LossScaleOptimizerV3}
FAMILY = pytest.mark.parametrize("family", sorted(FAMILIES))


def number(value):
    return float(np.asarray(value))


# -- beside Keras' own ---------------------------------------------------------------------------


@FAMILY
def test_it_passes_for_keras_own_and_starts_as_it_does(family):
    made = LossScaleOptimizer(FAMILIES[family].SGD(0.1))
    own = Theirs(FAMILIES[family].SGD(0.1))
    assert isinstance(made, (Theirs, OWN[family])) and isinstance(made, LossScaleOptimizer)
    assert made.initial_scale == own.initial_scale == 2.0**15
    assert made.dynamic_growth_steps == own.dynamic_growth_steps == 2000
    assert made.dynamic is own.dynamic is True
    assert made.dynamic_counter.dtype == own.dynamic_counter.dtype == tf.int64
    assert isinstance(made.loss_scale, tf.Tensor) and number(made.loss_scale) == 2.0**15
    assert isinstance(made.inner_optimizer, FAMILIES[family].SGD)
    fixed = LossScaleOptimizer(FAMILIES[family].SGD(0.1), dynamic=False, initial_scale=2)
    assert not fixed.dynamic and fixed.initial_scale == 2.0 and number(fixed.loss_scale) == 2.0
    assert fixed.dynamic_counter is None and fixed.dynamic_growth_steps is None


def step_of(optimizer, weight, factor, style):
    def loss():
        return tf.reduce_sum(weight * factor)

    if style == "minimize":
        optimizer.minimize(loss, [weight])
        return
    with tf.GradientTape() as tape:
        value = loss()
        value = value if style == "minimize with a tape" else optimizer.get_scaled_loss(value)
    if style == "minimize with a tape":
        optimizer.minimize(value, [weight], tape=tape)
        return
    grads = optimizer.get_unscaled_gradients(tape.gradient(value, [weight]))
    optimizer.apply_gradients(zip(grads, [weight]))


def trained(cls, family, strategy, shape, style):
    """Weights, scale, counter and iterations after steps that are bad on one replica only."""
    with strategy.scope():
        weight, factor = tf.Variable([1.0, 2.0]), tf.Variable(1.0)
        inner = FAMILIES[family].SGD(0.25, momentum=0.5, clipnorm=1.0)
        optimizer = cls(inner, initial_scale=8, dynamic_growth_steps=2)
    counter = getattr(optimizer, "dynamic_counter", None)
    counter = optimizer.state_variables[3] if counter is None else counter

    def replica():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        step_of(optimizer, weight, tf.where(tf.equal(index, 0), factor, 1.0), style)

    inside = tf.function(replica) if shape in ("inside", "both") else replica

    def run():
        strategy.run(inside)

    run = tf.function(run) if shape in ("around", "both") else run
    seen = []
    for value in (1.0, np.nan, 0.5, 1.0, np.inf, 1.0):
        factor.assign(value)
        run()
        copies = [copy.numpy() for copy in strategy.experimental_local_results(weight)]
        assert all(np.array_equal(copies[0], copy) for copy in copies)
        counts = [int(counter.numpy()), int(optimizer.iterations.numpy())]
        seen.append([*copies[0].tolist(), number(optimizer.loss_scale), *counts])
    return np.array(seen)


@FAMILY
@pytest.mark.parametrize(
    "devices, shape, style",
    [(1, "inside", "by hand"), (2, "eager", "minimize with a tape"), (2, "around", "minimize"),
     (2, "both", "by hand")],
)  # fmt: skip
def test_every_step_is_keras_own(strategies, devices, family, style, shape):
    """Also where a strategy runs the tf.function, and where it has one replica only."""
    ours, own, plain = (
        trained(cls, family, strategies[devices], shape, style) for cls in MAKES.values()
    )
    np.testing.assert_allclose(ours, own, rtol=1e-6)
    np.testing.assert_allclose(plain[:, :4], own[:, :4], rtol=1e-6)
    assert plain[-1, 4] == 4 and own[-1, 4] == 6  # Keras' class counts skipped steps, too
    assert len(set(own[:, 2])) > 1 and np.isfinite(own).all()


def sequential(seed=0):
    start = tf_keras.initializers.GlorotUniform
    return tf_keras.Sequential(
        [
            tf_keras.layers.Dense(8, "relu", kernel_initializer=start(seed), input_shape=(4,)),
            tf_keras.layers.Dense(1, kernel_initializer=start(seed + 1), dtype="float32"),
        ]
    )


RNG = np.random.RandomState(0)
X = RNG.randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True).astype("float32")
X_BAD = np.concatenate([X, np.full((8, 4), np.nan, "float32"), X])
Y_BAD = np.concatenate([Y, Y[:8], Y])


@pytest.mark.parametrize(
    "family, how",
    [("legacy", "plain"), ("legacy", "mirrored"), ("legacy", "mixed_float16"), ("new", "jit"),
     ("new", "mirrored")],
)  # fmt: skip
def test_fit_is_keras_own(strategies, family, how):
    """A bad batch in the middle is skipped; the mirrored one divides each batch over two."""

    def fitted(cls):
        scope = strategies[2].scope() if how == "mirrored" else tf.distribute.get_strategy().scope()
        if how == "mixed_float16":
            set_policy("mixed_float16")
        try:
            with scope:
                model = sequential()
                optimizer = cls(
                    FAMILIES[family].Adam(0.05), initial_scale=64, dynamic_growth_steps=3
                )
                model.compile(optimizer, "mse", jit_compile=how == "jit")
        finally:
            set_policy("float32")
        assert model.optimizer is optimizer
        model.fit(X_BAD, Y_BAD, batch_size=8, epochs=2, verbose=0, shuffle=False)
        found = [number(optimizer.loss_scale), int(optimizer.iterations.numpy())]
        return model.get_weights(), found, model.evaluate(X, Y, verbose=0)

    (ours, state, loss), (own, their_state, _) = (fitted(c) for c in CLASSES.values())
    assert state == their_state and state[0] > 64 and state[1] == 34 and loss < 20
    # In float16 the last bit of a gradient is 5e-4 of it; float32 unscaling keeps more than theirs.
    tolerance = 2e-2 if how == "mixed_float16" else 1e-5
    for a, b in zip(ours, own):
        np.testing.assert_allclose(a, b, atol=tolerance)


# -- checkpoints and files -------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize(
    "saver, loader",
    [("ours", "theirs"), ("theirs", "ours"), ("ours", "ours"), ("wrapper", "wrapper")],
)
def test_checkpoints_go_both_ways(tmp_path, family, saver, loader):
    """Nothing in them is left over, nothing is missing; also into slots made already."""

    def made(name):
        weight = tf.Variable([5.0, -1.0])
        inner = FAMILIES[family].Adam(0.5)
        optimizer = MAKES[name](inner, initial_scale=4, dynamic_growth_steps=4)
        return weight, optimizer, tf.train.Checkpoint(weight=weight, optimizer=optimizer)

    def train(weight, optimizer, steps):
        for _ in range(steps):
            optimizer.minimize(lambda: tf.reduce_sum(weight * weight), [weight])

    weight, optimizer, checkpoint = made(saver)
    train(weight, optimizer, 6)
    path = checkpoint.save(str(tmp_path / "saved"))
    other, again, reader = made(loader)
    if saver == loader:
        train(other, again, 1)
    status = reader.restore(path)
    status.assert_existing_objects_matched()
    train(weight, optimizer, 3)
    train(other, again, 3)
    status.assert_consumed()
    assert np.array_equal(weight.numpy(), other.numpy())
    assert number(again.loss_scale) == number(optimizer.loss_scale) == 16.0
    assert int(again.iterations.numpy()) == 9
    if loader == "wrapper":
        assert [int(v.numpy()) for v in again.state_variables] == [9, 0, 16, 1]
        return
    assert int(again.dynamic_counter.numpy()) == 1
    if family == "legacy":
        assert again.get_slot_names() == ["m", "v"]
        slots = [o.get_slot(w, "m").numpy() for o, w in ((again, other), (optimizer, weight))]
        assert np.array_equal(*slots)


@FAMILY
def test_checkpoints_without_a_loss_scale_go_both_ways_too(tmp_path, family):
    def made(wrapped):
        weight, inner = tf.Variable([5.0]), FAMILIES[family].SGD(1.0, momentum=1.0)
        optimizer = LossScaleOptimizer(inner) if wrapped else inner
        return weight, optimizer, tf.train.Checkpoint(weight=weight, optimizer=optimizer)

    for saves in (True, False):
        weight, optimizer, checkpoint = made(saves)
        optimizer.minimize(lambda: tf.reduce_sum(weight), [weight])  # noqa: B023
        path = checkpoint.save(str(tmp_path / f"saved-{saves}"))
        other, again, reader = made(not saves)
        reader.restore(path).assert_nontrivial_match()
        again.minimize(lambda: tf.reduce_sum(other), [other])  # noqa: B023
        assert other.numpy() == [2.0] and int(again.iterations.numpy()) == 2


@pytest.mark.parametrize(
    "family, ending", [("legacy", ".h5"), ("legacy", ""), ("new", ".keras"), ("new", ".h5")]
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_models_load_with_ours_and_keras_own_are_taken_over(tmp_path, family, ending):
    """And go on as Keras' own would from the same file."""
    losses = {}
    for name, cls in CLASSES.items():
        model = sequential()
        model.compile(cls(FAMILIES[family].Adam(0.1), initial_scale=4), "mse")
        model.fit(X, Y, verbose=0, batch_size=8, shuffle=False)
        path = str(tmp_path / f"{name}{ending}")
        model.save(path)
        loaded = tf_keras.models.load_model(path, custom_objects=CUSTOM_OBJECTS)
        assert isinstance(loaded.optimizer, LossScaleOptimizer)
        assert loaded.optimizer.initial_scale == 4.0
        losses[name] = loaded.fit(X, Y, verbose=0, batch_size=8, shuffle=False).history["loss"]
        plain = tf_keras.models.load_model(path)  # nothing registered
        assert isinstance(plain.optimizer, OWN[family])
        again = plain.fit(X, Y, verbose=0, batch_size=8, shuffle=False).history["loss"]
        if (family, ending) != ("new", ".h5"):  # Keras reads the newer kind's h5 state by name only
            np.testing.assert_allclose(again, losses[name], rtol=1e-5)
    np.testing.assert_allclose(losses["ours"], losses["theirs"], rtol=1e-5)


@pytest.mark.parametrize(
    "name, family", [("ours", "legacy"), ("theirs", "new"), ("wrapper", "new")]
)
def test_a_keras_file_restores_newer_optimizers_only(tmp_path, family, name):
    """Keras writes no state of legacy optimizers, nor its own class's loss scale."""
    optimizer = MAKES[name](FAMILIES[family].Adam(0.1), initial_scale=8, dynamic_growth_steps=3)
    model = sequential()
    model.compile(optimizer, "mse")
    model.fit(X, Y, verbose=0, batch_size=8, shuffle=False)
    path = str(tmp_path / "model.keras")
    model.save(path)
    assert number(optimizer.loss_scale) == 32.0
    expected = model.fit(X, Y, verbose=0, batch_size=8, shuffle=False).history["loss"]
    loaded = tf_keras.models.load_model(path, {} if name == "theirs" else CUSTOM_OBJECTS)
    found, newer = loaded.optimizer, family == "new"
    cls = {"wrapper": wrapper.LossScaleOptimizer, "ours": LossScaleOptimizer}
    assert isinstance(found, cls.get(name, OWN[family])) and int(found.iterations) == 8 * newer
    assert number(found.loss_scale) == (32.0 if newer and name == "wrapper" else 8.0)
    again = loaded.fit(X, Y, verbose=0, batch_size=8, shuffle=False).history["loss"]
    assert np.allclose(again, expected, rtol=1e-5) == newer


# -- configurations --------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize(
    "arguments",
    [dict(initial_scale=2.0, dynamic_growth_steps=3), dict(dynamic=False, initial_scale=2.0)],
)
def test_configurations_go_both_ways(family, arguments):
    made = LossScaleOptimizer(FAMILIES[family].SGD(2.0, momentum=0.5), **arguments)
    own = OWN[family](FAMILIES[family].SGD(2.0, momentum=0.5), **arguments)
    config = made.get_config()
    assert config == own.get_config()
    again = LossScaleOptimizer.from_config(copy.deepcopy(config))
    assert (
        again.get_config() == OWN[family].from_config(copy.deepcopy(config)).get_config() == config
    )
    assert type(made).from_config(config).get_config() == config
    serialized = tf_keras.optimizers.serialize(made)
    found = tf_keras.optimizers.deserialize(copy.deepcopy(serialized), CUSTOM_OBJECTS)
    assert isinstance(found, LossScaleOptimizer) and found.get_config() == config
    variable = tf.Variable([5.0])
    found.minimize(lambda: variable * 1.0, [variable])
    assert variable.numpy() == [3.0]


# -- attributes ------------------------------------------------------------------------------------


def test_hyperparameters_of_a_legacy_optimizer():
    inner = tf_keras.optimizers.legacy.Adam(1.0, beta_1=0.5, clipnorm=3.0)
    made = LossScaleOptimizer(inner)
    assert number(made.beta_1) == 0.5 and isinstance(made.beta_1, tf.Variable)
    assert made.lr is inner.lr is made.learning_rate
    made.beta_1 = 0.25
    assert number(inner.beta_1) == 0.25 and made.beta_1 is inner.beta_1
    made.lr = 2.0
    assert number(inner.learning_rate) == number(made.learning_rate) == 2.0
    assert made.clipnorm == 3.0
    made.clipnorm = 4.0
    assert inner.clipnorm == 4.0
    assert {"learning_rate", "lr", "minimize", "loss_scale"} < set(dir(made))
    assert "nesterov" not in dir(made)
    with pytest.raises(AttributeError):
        made.loss_scale = 2.0
    made.iterations = 7
    assert made.iterations == inner.iterations == 7


def test_a_function_that_sums_gradients_is_called():
    def spoiled(pairs):
        return [(g * float("nan"), v) for g, v in pairs]

    weight = tf.Variable([1.0, 2.0])
    inner = tf_keras.optimizers.legacy.SGD(1.0, gradient_aggregator=spoiled)
    made = LossScaleOptimizer(inner, initial_scale=2)
    made.minimize(lambda: weight * 2, [weight])
    assert weight.numpy().tolist() == [1.0, 2.0] and number(made.loss_scale) == 1.0


# -- refused ---------------------------------------------------------------------------------------


@FAMILY
def test_arguments_that_keras_refuses(family):
    def sgd():
        return FAMILIES[family].SGD(1.0)

    with pytest.raises(ValueError, match='"initial_scale" must be specified if "dynamic" is False'):
        LossScaleOptimizer(sgd(), dynamic=False)
    with pytest.raises(ValueError, match='must be None if "dynamic" is False, but got: 2'):
        LossScaleOptimizer(sgd(), False, 1, 2)
    with pytest.raises(TypeError, match="must be a bool, but got: 'dynamic'"):
        LossScaleOptimizer(sgd(), "dynamic")
    with pytest.raises(TypeError, match="cannot wrap another LossScaleOptimizer"):
        LossScaleOptimizer(LossScaleOptimizer(sgd()))
    with pytest.raises(TypeError, match="cannot wrap another LossScaleOptimizer"):
        LossScaleOptimizer(Theirs(sgd()))
    inner = sgd()
    LossScaleOptimizer(inner)
    for cls in CLASSES.values():
        with pytest.raises(ValueError, match="already wrapped by a LossScaleOptimizer"):
            cls(inner)
    with pytest.raises(TypeError, match="must be an instance of .* but got: 1"):
        LossScaleOptimizer(1)
    with pytest.raises(TypeError, match="but got: <tensorflow"):
        LossScaleOptimizer(tf.compat.v1.train.AdamOptimizer())
    with pytest.raises(TypeError, match="is SGD of Keras 3.*keras.mixed_precision"):
        LossScaleOptimizer(keras3.optimizers.SGD())


@FAMILY
def test_steps_without_scaling_are_warned_of(family):
    weight, grad = tf.Variable(1.0), tf.constant(1.0)

    def made():
        return LossScaleOptimizer(FAMILIES[family].SGD(1.0))

    with pytest.warns(LossScaleWarning, match="neither was ever called"):
        made().apply_gradients([(grad, weight)])
    with pytest.warns(LossScaleWarning, match="get_scaled_loss\\(\\) was ever called"):
        optimizer = made()
        optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients([grad]), [weight]))
    with pytest.warns(LossScaleWarning, match="never unscaled"):
        optimizer = made()
        optimizer.get_scaled_loss(1.0)
        optimizer.apply_gradients([(grad, weight)])
