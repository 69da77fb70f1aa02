"""GELU and layer norm by hand: bert4keras' values, the true derivatives, fewer tensors."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.training import derivatives
from amp_xla.training.model import build_transformer_model

ROWS = np.random.RandomState(1).normal(0, 2, (3, 5, 16))
SLOPES = np.random.RandomState(2).normal(0, 1, ROWS.shape)
GAMMA = np.random.RandomState(3).normal(1, 0.3, 16)
BETA = np.random.RandomState(4).normal(0, 0.3, 16)


@pytest.fixture(autouse=True)
def session():
    """What a test installs is taken back: other tests ask for bert4keras' own."""
    models = backend.bert4keras("models")
    layer = models.LayerNormalization
    gelu = keras.utils.get_custom_objects()["gelu"]
    with tf.Graph().as_default(), tf.Session() as session:
        K.set_session(session)
        yield session
    models.LayerNormalization = layer
    keras.utils.get_custom_objects()["gelu"] = gelu
    K.clear_session()


def theirs(x, gamma, beta, epsilon):
    """Layer norm operation by operation; TensorFlow differentiates it."""
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred / tf.sqrt(variance + epsilon) * gamma + beta


def with_gradients(session, function, *arrays):
    """[value, gradient in each argument] for the slopes above."""
    tensors = [tf.constant(array) for array in arrays]
    value = function(*tensors)
    return session.run([value, *tf.gradients(value, tensors, tf.cast(SLOPES, value.dtype))])


def check_equal(found, expected, tolerance):
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_gelu(session, dtype, tolerance):
    x = (3 * ROWS).astype(dtype)
    expected = with_gradients(session, backend.bert4keras().gelu_erf, x)
    check_equal(with_gradients(session, derivatives.gelu, x), expected, tolerance)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 5e-6)])
def test_layer_norm(session, dtype, tolerance, epsilon):
    arrays = [array.astype(dtype) for array in (ROWS, GAMMA, BETA)]
    expected = with_gradients(session, lambda *args: theirs(*args, epsilon), *arrays)
    found = with_gradients(session, lambda *args: derivatives.layer_norm(*args, epsilon), *arrays)
    check_equal(found, expected, tolerance)


def test_derivatives_are_the_slopes_of_the_values(session):
    """Not against formulas this time: against differences of the values themselves."""
    x = tf.placeholder(tf.float64, ROWS.shape)
    for y in (derivatives.gelu(x), derivatives.layer_norm(x, GAMMA, BETA, 1e-5)):
        slope = tf.gradients(y, x, SLOPES)[0]
        direction = np.random.RandomState(5).normal(0, 1, ROWS.shape)
        ahead, behind = (session.run(y, {x: ROWS + step * direction}) for step in (1e-5, -1e-5))
        expected = np.sum(SLOPES * (ahead - behind)) / 2e-5
        found = np.sum(session.run(slope, {x: ROWS}) * direction)
        assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_row_of_equal_numbers_is_finite(session, dtype):
    """In float16 bert4keras' epsilon of 1e-12 is 0: 0 / 0 there."""
    arrays = [np.full(ROWS.shape, 7.0).astype(dtype), GAMMA.astype(dtype), BETA.astype(dtype)]
    value, *gradients = with_gradients(
        session, lambda *args: derivatives.layer_norm(*args, 1e-12), *arrays
    )
    np.testing.assert_array_equal(value, np.broadcast_to(arrays[2], ROWS.shape))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("large", [30.0, 300.0, 6e4])
def test_gelu_of_large_numbers_in_half_precision(session, large):
    x = np.full(ROWS.shape, large, np.float16)
    x[..., ::2] *= -1
    value, gradient = with_gradients(session, derivatives.gelu, x)
    np.testing.assert_array_equal(value, np.maximum(x, 0))
    np.testing.assert_array_equal(gradient, np.where(x > 0, SLOPES, 0).astype(np.float16))


CONFIG = dict(
    vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=128, hidden_act="gelu", max_position=16, dropout_rate=0.0,
)  # fmt: skip
INPUTS = [np.arange(32).reshape(2, 16) + 5, np.zeros((2, 16), int)]


def outcome(build):
    """Names of the weights; output and gradients; operations of the backward pass."""
    with tf.Graph().as_default(), tf.Session() as session:
        K.set_session(session)
        model = build(model="bert", **CONFIG)
        random = np.random.RandomState(0)
        K.batch_set_value([(w, random.normal(0, 0.1, w.shape)) for w in model.weights])
        before = len(session.graph.get_operations())
        slopes = tf.gradients(tf.reduce_sum(tf.square(model.output)), model.trainable_weights)
        count = len(session.graph.get_operations()) - before
        dense = [tf.convert_to_tensor(slope) for slope in slopes if slope is not None]
        values = session.run([model.output, *dense], dict(zip(model.inputs, INPUTS)))
        return [w.name for w in model.weights], values, count


def test_a_model_has_the_same_values_gradients_and_names(session):
    theirs_ = outcome(backend.bert4keras("models").build_transformer_model)
    ours = outcome(build_transformer_model)
    layers = [name.split("/", 1)[0] for name in theirs_[0]]
    assert [name.split("/", 1)[0] for name in ours[0]] == layers
    assert len(ours[1]) == len(theirs_[1]) > 30
    for found, expected in zip(ours[1], theirs_[1]):
        # A bias of the keys changes nothing: its gradient is what rounding leaves, 1e-10.
        tolerance = 1e-4 * np.abs(expected).max() + 1e-8
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=tolerance)
    assert ours[2] < 0.9 * theirs_[2]


def test_a_gelu_chosen_by_hand_stays(session):
    module = backend.bert4keras()
    try:
        module.set_gelu("tanh")
        derivatives.install()
        assert keras.utils.get_custom_objects()["gelu"] is module.gelu_tanh
    finally:
        module.set_gelu("erf")
    derivatives.install()
    assert keras.utils.get_custom_objects()["gelu"] is derivatives.gelu


@pytest.mark.parametrize("form", [{"zero_mean": False}, {"scale": False}, {"conditional": True}])
def test_other_forms_of_the_layer_are_bert4keras_own(session, form):
    original = backend.bert4keras("layers").LayerNormalization
    derivatives.install()
    installed = backend.bert4keras("models").LayerNormalization
    assert installed is not original and issubclass(installed, original)
    inputs = keras.layers.Input((5, 16))
    inputs = [inputs, keras.layers.Input((8,))] if form.get("conditional") else inputs
    outputs = [layer(**form)(inputs) for layer in (original, installed)]
    K.get_session().run(tf.global_variables_initializer())
    feeds = dict(zip(tf.nest.flatten(inputs), [ROWS, np.ones((3, 8))]))
    theirs_, ours = session.run(outputs, feeds)
    np.testing.assert_array_equal(theirs_, ours)
