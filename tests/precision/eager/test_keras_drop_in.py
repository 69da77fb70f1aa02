"""The drop-in for Keras' LossScaleOptimizer, beside Keras' own, eagerly and in tf.function.

Keras' own tests (``keras_own_suite``) have its attributes, its errors and strategies.
"""

import importlib

import numpy as np
import pytest
import tf_keras
from tf_keras.src.mixed_precision import loss_scale_optimizer as source

from amp_xla import backend
from amp_xla.precision import DynamicLossScale, LossScaleWarning
from amp_xla.precision import optimizer as wrapper
from amp_xla.precision.compat.keras import CUSTOM_OBJECTS, LossScaleOptimizer, set_policy
from tests.precision.eager.conftest import take_step

tf = backend.tensorflow()
keras3 = importlib.import_module("keras")
CLASSES = {"ours": LossScaleOptimizer, "theirs": tf_keras.mixed_precision.LossScaleOptimizer}


def wrapped(inner, initial_scale, dynamic_growth_steps):
    """The optimizer that is no drop-in."""
    scale = DynamicLossScale(initial_scale, growth_interval=dynamic_growth_steps)
    return wrapper.LossScaleOptimizer(inner, scale)


def accumulating(inner, **_):
    return wrapper.LossScaleOptimizer(inner, accumulate=2)


MAKES = {**CLASSES, "wrapper": wrapped}
FAMILIES = {"legacy": tf_keras.optimizers.legacy, "new": tf_keras.optimizers}
OWN = {"legacy": source.LossScaleOptimizer, "new": source.LossScaleOptimizerV3}


def number(value):
    return float(np.asarray(value))


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
        value = tf.where(tf.equal(index, 0), factor, 1.0)
        take_step(optimizer, lambda: tf.reduce_sum(weight * value), [weight], style)

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


@pytest.mark.parametrize(
    "family, devices, shape, style",
    [("legacy", 1, "inside", "by hand"), ("new", 2, "eager", "tape"),
     ("legacy", 2, "around", "callable"), ("new", 2, "both", "by hand")],
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
    with pytest.raises(ValueError, match="accumulate=2 under MirroredStrategy"):
        trained(accumulating, family, strategies[devices], shape, style)


def sequential(seed=0):
    start = tf_keras.initializers.GlorotUniform
    return tf_keras.Sequential([
        tf_keras.layers.Dense(8, "relu", kernel_initializer=start(seed), input_shape=(4,)),
        tf_keras.layers.Dense(1, kernel_initializer=start(seed + 1), dtype="float32"),
    ])  # fmt: skip


RNG = np.random.RandomState(0)
X = RNG.randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True).astype("float32")
X_BAD = np.concatenate([X, np.full((8, 4), np.nan, "float32"), X])
Y_BAD = np.concatenate([Y, Y[:8], Y])


@pytest.mark.parametrize(
    "family, how", [("legacy", "mirrored"), ("legacy", "mixed_float16"), ("new", "jit")]
)
def test_fit_is_keras_own(strategies, family, how):
    """A bad batch in the middle is skipped; the mirrored one divides each batch over two."""

    def fitted(cls):
        scope = strategies[2].scope() if how == "mirrored" else tf.distribute.get_strategy().scope()
        if how == "mixed_float16":
            set_policy("mixed_float16")
        try:
            with scope:
                model = sequential()
                inner = FAMILIES[family].Adam(0.05)
                optimizer = cls(inner, initial_scale=64, dynamic_growth_steps=3)
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


@pytest.mark.parametrize(
    "family, saver, loader",
    [("new", "theirs", "ours"), ("legacy", "ours", "ours"),
     ("new", "wrapper", "wrapper")],
)  # fmt: skip
def test_checkpoints_go_both_ways(tmp_path, family, saver, loader):
    """Every value is restored, also into existing slots, and no value in the file is unused."""

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


@pytest.mark.parametrize("family, ending", [("legacy", ".h5"), ("new", ".keras"), ("new", "")])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_models_load_with_ours_and_keras_own_are_taken_over(tmp_path, family, ending):
    """They continue as Keras' own class does from the same file, or SavedModel."""
    losses = {}
    for name, cls in (MAKES if family == "legacy" else CLASSES).items():
        model = sequential()
        inner = FAMILIES[family].Adam(0.1)
        model.compile(cls(inner, initial_scale=4, dynamic_growth_steps=2000), "mse")
        model.fit(X, Y, verbose=0, batch_size=8, shuffle=False)
        path = str(tmp_path / f"{name}{ending}")
        model.save(path)
        loaded = tf_keras.models.load_model(path, custom_objects=CUSTOM_OBJECTS)
        assert isinstance(loaded.optimizer, LossScaleOptimizer) == (name != "wrapper")
        assert number(loaded.optimizer.loss_scale) == 4.0
        losses[name] = loaded.fit(X, Y, verbose=0, batch_size=8, shuffle=False).history["loss"]
        if name in CLASSES:
            plain = tf_keras.models.load_model(path)  # nothing registered
            assert isinstance(plain.optimizer, OWN[family])
            again = plain.fit(X, Y, verbose=0, batch_size=8, shuffle=False).history["loss"]
            np.testing.assert_allclose(again, losses[name], rtol=1e-5)
    np.testing.assert_allclose(list(losses.values()), [losses["theirs"]] * len(losses), rtol=1e-5)


def test_optimizers_of_other_libraries_are_refused():
    for message, inner in (
        ("but got: <tensorflow", tf.compat.v1.train.AdamOptimizer()),
        ("is SGD of Keras 3.*keras.mixed_precision", keras3.optimizers.SGD()),
    ):
        with pytest.raises(TypeError, match=message):
            LossScaleOptimizer(inner)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_steps_without_scaling_are_warned_of(family):
    weight, grad = tf.Variable(1.0), tf.constant(1.0)

    def made():
        return LossScaleOptimizer(FAMILIES[family].SGD(1.0))

    with pytest.warns(LossScaleWarning, match="was never called"):
        made().apply_gradients([(grad, weight)])
    with pytest.warns(LossScaleWarning, match="was never called"):
        optimizer = made()
        optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients([grad]), [weight]))
    with pytest.warns(LossScaleWarning, match="never unscaled"):
        optimizer = made()
        optimizer.get_scaled_loss(1.0)
        optimizer.apply_gradients([(grad, weight)])
