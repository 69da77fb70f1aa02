"""The drop-in for Keras' LossScaleOptimizer in graph mode, on both TensorFlows."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.precision import facade, optimizer
from amp_xla.precision.compat.keras import LossScaleOptimizer
from tests.support.precision_training import same

RNG = np.random.RandomState(0)
X = RNG.randn(64, 4).astype("float32")
Y = X.sum(1, keepdims=True).astype("float32")


pytestmark = pytest.mark.usefixtures("cleared")


def own(inner, **arguments):
    """Return Keras' class around ``inner``, with equal settings on both TensorFlows."""
    cls = facade.own_class(inner)
    if backend.kind() == "tf2":
        return cls(inner, **arguments)
    scale = backend.tensorflow().train.experimental.DynamicLossScale(
        arguments["initial_scale"], arguments["dynamic_growth_steps"]
    )
    return cls(inner, scale)


CLASSES = {"ours": LossScaleOptimizer, "theirs": own}


@pytest.mark.parametrize(
    "cls, devices", [(LossScaleOptimizer, 2), (optimizer.LossScaleOptimizer, 1)]
)
def test_a_mirrored_strategy_trains_in_a_v1_graph(cls, devices):
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        names = [f"cpu:{i}" for i in range(devices)]
        strategy = backend.tensorflow().distribute.MirroredStrategy(names)
        with strategy.scope():
            weight = tf.Variable([5.0], use_resource=True)
            made = cls(keras.optimizers.SGD(2.0))
            run = getattr(strategy, "run", None) or strategy.experimental_run_v2
            steps = [
                strategy.experimental_local_results(
                    run(lambda f=factor: made.minimize(lambda: weight * f, [weight]))
                )
                for factor in (1.0, float("nan"))
            ]
            session.run(tf.global_variables_initializer())
            session.run(steps[0])
            session.run(steps[1])
            assert session.run(weight) == 5.0 - 2.0 * devices
            assert session.run(made.state_variables)[:3] == [1, 1, 2.0**14]


def test_what_its_users_read_and_a_skipped_step():
    made = LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**127)
    start = keras.initializers.glorot_uniform
    model = keras.models.Sequential([
        keras.layers.Dense(8, activation="relu", kernel_initializer=start(1), input_shape=(4,)),
        keras.layers.Dense(1, kernel_initializer=start(2)),
    ])  # fmt: skip
    model.compile(made, "mse")
    # The same batch each time: once its gradients fit, no later ones are larger.
    model.fit(X, Y * 100, batch_size=len(X), epochs=8, verbose=0)
    scale, counter, steps, applied = K.batch_get_value(
        [made.loss_scale, made.dynamic_counter, made.iterations, made.applied_steps]
    )
    assert scale < 2.0**127 and counter == applied < 8
    assert steps == 8  # as Keras counts: skipped ones too
    assert made.dynamic and made.initial_scale == 2.0**127 and made.dynamic_growth_steps == 2000
    assert K.get_value(made.lr) == pytest.approx(0.01) and K.get_value(made.beta_1) > 0.8
    K.set_value(made.lr, 0.5)
    assert K.get_value(made.inner_optimizer.learning_rate) == 0.5
    made.learning_rate, made.beta_1 = 0.25, 0.75
    assert K.batch_get_value([made.inner_optimizer.lr, made.inner_optimizer.beta_1]) == [0.25, 0.75]
    assert made.get_slot_names() == (["m", "v"] if backend.kind() == "tf2" else [])
    kernel = model.trainable_weights[0]
    assert made.get_slot(kernel, "m") is made.inner_optimizer.get_slot(kernel, "m")
    assert same(made.get_weights(), made.inner_optimizer.get_weights())
    with pytest.raises(AttributeError, match="has no attribute 'amsgrad'"):
        _ = made.amsgrad


@pytest.mark.parametrize("saver, loader", [("ours", "theirs"), ("theirs", "ours")])
def test_checkpoints_go_both_ways(tmp_path, saver, loader):
    def made(name):
        weight = tf.Variable([5.0, -1.0], name="weight", use_resource=True)
        inner = keras.optimizers.SGD(0.1, momentum=0.5)
        optimizer = CLASSES[name](inner, initial_scale=4.0, dynamic_growth_steps=4)
        loss = tf.reduce_sum(weight * weight)
        if name == "ours" or backend.kind() == "tf2":
            (step,) = optimizer.get_updates(loss, [weight])
        else:  # TensorFlow 1.15's own steps in replica contexts only
            pairs = zip(optimizer.get_gradients(loss, [weight]), [weight])
            step = optimizer.apply_gradients(list(pairs))
        return weight, step, tf.train.Checkpoint(weight=weight, optimizer=optimizer)

    with tf.Graph().as_default(), tf.Session() as session:
        weight, step, checkpoint = made(saver)
        session.run(tf.global_variables_initializer())
        for _ in range(6):
            session.run(step)
        path = checkpoint.save(str(tmp_path / "saved"), session=session)
        for _ in range(3):
            session.run(step)
        expected = session.run(weight)
    with tf.Graph().as_default(), tf.Session() as session:
        weight, step, checkpoint = made(loader)
        session.run(tf.global_variables_initializer())
        status = checkpoint.restore(path)
        status.assert_consumed()
        status.run_restore_ops(session)
        for _ in range(3):
            session.run(step)
        assert np.array_equal(session.run(weight), expected)
        optimizer = checkpoint.optimizer
        if loader == "ours":
            found = session.run([optimizer.loss_scale, optimizer.dynamic_counter])
            assert found == [16.0, 1] and session.run(optimizer.iterations) == 9
