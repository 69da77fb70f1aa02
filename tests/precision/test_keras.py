"""Keras in graph mode: policies, rules, and the blocks of the documentation."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.errors import SettingsError
from amp_xla.precision import LossScaleWarning, Policy, PolicyRules, get_policy
from amp_xla.precision.compat.keras import LossScaleOptimizer as DropIn
from amp_xla.precision.compat.keras import (
    from_keras,
    graph_rewrite,
    set_policy,
    to_keras,
    with_rules,
)
from amp_xla.precision.compat.sok import LossScaleOptimizer as SokOptimizer
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support import heads
from tests.support.precision_training import same
from tests.support.small_fit import Batches
from tests.support.snippets import blocks, run


@pytest.fixture(autouse=True)
def float32_afterwards(cleared):
    yield
    set_policy("float32")


@pytest.mark.parametrize("text, name", [("c=f16", "mixed_float16"), ("f16", "float16")])
def test_policies_to_and_from_keras(text, name):
    made = to_keras(get_policy(text))
    assert made.name == name and from_keras(made) == from_keras(name) == get_policy(text)


def test_policies_that_keras_cannot_express_are_refused():
    with pytest.raises(ValueError, match="give the last layer dtype='float32'"):
        to_keras("c=f16,o=f32")
    with pytest.raises(ValueError, match="float16 variables and float32 compute"):
        to_keras(Policy("f16", "f32", "f32"))


def test_policy_and_graph_rewrite_refuse_each_other(monkeypatch):
    assert graph_rewrite() is None
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", "1")
    with pytest.raises(SettingsError, match="GRAPH_REWRITE"):
        set_policy("mixed_float16")
    set_policy("float32")  # nothing to convert
    monkeypatch.delenv("TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    try:
        with pytest.raises(SettingsError, match="option auto_mixed_precision"):
            set_policy("mixed_float16")
    finally:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})
    set_policy("mixed_float16")


def test_rules_reach_bert4keras_layers(request):
    source = backend.bert4keras("backend")
    if hasattr(source.K, "set_infinity"):
        before = source.K.infinity()
        source.K.set_infinity(1e4)  # its own, 1e12, is past float16
        request.addfinalizer(lambda: source.K.set_infinity(before))
    model = heads.encoder()
    mixed = with_rules(model, PolicyRules("mixed_float16", [("Norm", "float32")]))
    dtypes = {layer.name: K.dtype(layer.output) for layer in mixed.layers}
    assert dtypes["Transformer-0-FeedForward"] == "float16"
    assert dtypes["Transformer-0-FeedForward-Norm"] == "float32"
    answers = [each.predict(heads.tokens()) for each in (mixed, model)]
    np.testing.assert_allclose(*answers, atol=2e-2)
    assert same(model.get_weights(), mixed.get_weights())


@pytest.mark.parametrize("wrap", [LossScaleOptimizer, DropIn, SokOptimizer])
def test_an_optimizer_from_before_clear_session_is_named(wrap):
    optimizer = wrap(keras.optimizers.Adam(0.1))
    for again in (False, True):
        model = keras.models.Sequential([keras.layers.Dense(1, input_shape=(2,))])
        model.compile(optimizer, "mse")
        if again:
            with pytest.raises(RuntimeError, match="another graph.*create it and its inner"):
                model.train_on_batch(np.ones([2, 2]), np.ones([2, 1]))
        else:
            model.train_on_batch(np.ones([2, 2]), np.ones([2, 1]))
        K.clear_session()


@pytest.mark.parametrize("code", blocks("graph"))
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_the_documentations_graph_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = backend.keras.models.Sequential([backend.keras.layers.Dense(1, input_shape=(4,))])
    model.compile(loss="mse", optimizer="sgd")
    run(code.replace("steps=20", "steps=2"), model=model, batches=Batches(16))


class Tracking(keras.layers.Layer):
    """Counts batches and assigns the mean of the last one, and of this twice the value."""

    def build(self, shape):
        self.batches = self.add_weight("batches", [], initializer="zeros", trainable=False)
        self.mean = self.add_weight("mean", [shape[-1]], initializer="zeros", trainable=False)
        self.twice = self.add_weight("twice", [shape[-1]], initializer="zeros", trainable=False)

    def call(self, x):
        batches = keras.backend.update_add(self.batches, 1.0)
        self.add_update(batches)
        mean = keras.backend.update(self.mean, tf.reduce_mean(x, [0, 1, 2]))
        self.add_update(self.twice.assign(2.0 * mean + 0.0 * batches))
        return x


@pytest.mark.parametrize("wrap, equal, batches", [
    (LossScaleOptimizer, (2, 3, 4), 6), (DropIn, (2, 3, 4), 6),
    (lambda inner: LossScaleOptimizer(inner, 8.0, accumulate=2), (1, 3, 5), 4),
    (lambda inner: LossScaleOptimizer(inner, 8.0, accumulate=3), (2, 5), 5),
])  # fmt: skip
@pytest.mark.parametrize("layer", [
    lambda: keras.layers.BatchNormalization(fused=True),
    lambda: keras.layers.BatchNormalization(fused=False), Tracking,
    lambda: keras.layers.BatchNormalization(renorm=True),
])  # fmt: skip
def test_layers_update_their_variables_in_applied_steps_only(cleared, wrap, equal, batches, layer):
    layers = [keras.layers.Reshape([2, 2, 1], input_shape=[4]), layer(), keras.layers.Flatten()]
    model = keras.models.Sequential([*layers, keras.layers.Dense(1)])
    optimizers = getattr(keras.optimizers, "legacy", keras.optimizers)
    model.compile(wrap(optimizers.SGD(1e-3)), "mse")
    model.set_weights(model.get_weights())  # sessions know the updates before the optimizer's
    x, seen = np.random.RandomState(0).randn(8, 8, 4), []
    x[3, 3] = x[4, 3] = np.inf  # in the second half of a window, and in the first
    for batch in x:
        model.train_on_batch(batch, batch[:, :1])
        seen.append(model.get_weights())
    assert all(same(seen[equal[0]], seen[number]) for number in equal)
    assert not any(map(np.array_equal, seen[0], seen[-1]))
    assert all(np.isfinite(weight).all() for weight in seen[-1])
    if layer is Tracking:  # another update depends on its count
        assert layers[1].get_weights()[0] == batches


def renormalized(mean, x):
    tf.layers.batch_normalization(tf.reshape(x, [1, 1]), renorm=True, training=True)
    return tf.group(mean.assign(0.5 * x), *tf.get_collection(tf.GraphKeys.UPDATE_OPS))


def branching(mean, x):
    return tf.cond(x < 0.0, lambda: mean + 0.0, lambda: mean.assign(0.5 * x))


@pytest.mark.parametrize("update", [
    lambda mean, x: mean.assign(0.5 * x), renormalized, branching,
    lambda mean, x: tf.cond(x > 9.0, lambda: mean + 0.0, lambda: branching(mean, x)),
    lambda m, x: tf.while_loop(lambda i: i < 1.0, lambda i: 1.0 + 0.0 * m.assign(0.5 * x), [0.0]),
    lambda mean, x: backend.tensorflow().function(lambda y: mean.assign(0.5 * y))(x),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*batch_normalization. is deprecated")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_minimize_runs_what_it_waits_for_in_applied_steps_only(cleared, accumulate, update):
    with tf.Graph().as_default(), tf.Session() as session:
        x, zeros = tf.placeholder(tf.float32, []), tf.zeros_initializer()
        options = {"initializer": zeros, "use_resource": update is not branching}
        weight, mean = (tf.get_variable(name, [], **options) for name in ("weight", "mean"))
        loss, updates = tf.square(weight - x), [update(mean, x)]
        averages = [v for v in tf.global_variables() if v is not weight]
        optimizer = LossScaleOptimizer(tf.train.AdamOptimizer(0.1), 8.0, accumulate=accumulate)
        with tf.control_dependencies([tf.group(*updates)]):
            operation = optimizer.minimize(loss, [weight])
        session.run(tf.global_variables_initializer())
        seen = []
        for value in (1.0, 2.0, 3.0, np.nan, np.inf, 5.0, 6.0, 7.0):
            session.run(operation, {x: value})
            seen.append(session.run([weight, *averages]))
        applied = [0.5, 1, 1.5, 1.5, 1.5, 2.5, 3, 3.5]
        means = applied if accumulate == 1 else [0.5, 1, 1.5, 1, 1, 1, 3, 3.5]
        assert [value[1] for value in seen] == means
        assert same(seen[3][1:], seen[2 if accumulate == 1 else 1][1:])
        assert seen[-1][0] != seen[5][0] and all(np.isfinite(value).all() for value in seen[-1])


def test_an_update_that_the_loss_depends_on_is_named(cleared):
    with tf.Graph().as_default():
        mean = tf.get_variable("mean", [], initializer=tf.zeros_initializer())
        update = branching(mean, tf.placeholder(tf.float32, []))
        optimizer = LossScaleOptimizer(tf.train.AdamOptimizer(0.1), 8.0)
        with tf.control_dependencies([update]), pytest.warns(LossScaleWarning, match="s mean, too"):
            optimizer.minimize(tf.get_variable("weight", []) * update)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
def test_recurrent_layers_train_by_their_last_output(name):
    x = keras.layers.Input([5, 3])
    both = [getattr(keras.layers, name)(4, return_sequences=whole) for whole in (False, True)]
    last, outputs = (layer(keras.layers.Masking()(x)) for layer in both)
    model = keras.models.Model(x, keras.layers.Dense(1)(last))
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1), 1000), "mse")
    values = np.random.RandomState(0).randn(6, 5, 3)
    losses = [model.train_on_batch(values, np.ones([6, 1])) for _ in range(5)]
    assert losses[4] < losses[0]
    both[1].set_weights(both[0].get_weights())
    found = keras.models.Model(x, [last, outputs]).predict(values)
    np.testing.assert_array_equal(found[0], found[1][:, -1])
