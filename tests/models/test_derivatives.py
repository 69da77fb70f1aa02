"""GELU, layer norm and attention: bert4keras' values, TensorFlow's derivatives, fewer tensors."""

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.models import derivatives, dropout, encoders

ROWS = np.random.RandomState(1).normal(0, 2, (3, 5, 16))
SLOPES = np.random.RandomState(2).normal(0, 1, ROWS.shape)
GAMMA = np.random.RandomState(3).normal(1, 0.3, 16)
BETA = np.random.RandomState(4).normal(0, 0.3, 16)


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        K.set_session(session)
        yield session
    K.clear_session()


def with_gradients(session, function, *arrays):
    """Return the value, and its gradient by each argument for the slopes above."""
    tensors = [tf.constant(array) for array in arrays]
    value = function(*tensors)
    return session.run([value, *tf.gradients(value, tensors, tf.cast(SLOPES, value.dtype))])


def check_equal(found, expected):
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


QUERY, KEY, VALUE = np.random.RandomState(6).normal(0, 1, (3, 2, 5, 3, 4))
KEPT = np.random.RandomState(7).uniform(size=(2, 3, 5, 5)) < 0.7
SAME = np.array([[0, 0, 0, 1, 1], [0, 1, 1, 1, -1]])
BANNED = np.where(SAME[:, None, :, None] == SAME[:, None, None, :], 0.0, -1e4)


def theirs_of_attention(query, key, value, bias, kept):
    """Attention operation by operation; TensorFlow differentiates it."""
    scores = tf.einsum("bjhd,bkhd->bhjk", query, key)
    weights = tf.nn.softmax(scores if bias is None else scores + bias)
    if kept is not None:
        weights *= tf.cast(kept, weights.dtype)
    return tf.einsum("bhjk,bkhd->bjhd", weights, value)


@pytest.mark.parametrize("kept, bias", [(None, None), (KEPT, BANNED)], ids=["plain", "masked"])
def test_attention(session, kept, bias):
    def run(function):
        tensors = [tf.constant(array) for array in (QUERY, KEY, VALUE)]
        value = function(*tensors, bias, kept)
        return session.run([value, *tf.gradients(value, tensors, tf.square(value) + 1)])

    check_equal(run(derivatives.attention), run(theirs_of_attention))


def test_attention_to_nothing_and_a_row_of_equal_numbers_are_finite_in_half_precision(session):
    """A row of padding alone, whose bias is twice bert4keras' infinity for float16."""
    arrays = [array.astype(np.float16) for array in (QUERY, KEY, VALUE)]
    tensors = [tf.constant(array) for array in arrays]
    bias = derivatives.mask_bias(tf.zeros([2, 1, 5, 5], tf.bool))
    assert session.run(tf.reduce_max(bias)) <= -1e4
    out = derivatives.attention(*tensors, tf.clip_by_value(2 * bias, -2e4, 0.0))
    for found in session.run([out, *tf.gradients(out, tensors)]):
        assert found.dtype == np.float16 and np.isfinite(found).all()
    # In float16 bert4keras' epsilon of 1e-12 is 0: 0 / 0 there.
    arrays = [array.astype(np.float16) for array in (np.full(ROWS.shape, 7.0), GAMMA, BETA)]
    value, *gradients = with_gradients(
        session, lambda *args: derivatives.layer_norm(*args, 1e-12), *arrays
    )
    np.testing.assert_array_equal(value, np.broadcast_to(arrays[2], ROWS.shape))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("large", [30.0, 6e4])
def test_gelu_of_large_numbers_in_half_precision(session, large):
    x = np.full(ROWS.shape, large, np.float16)
    x[..., ::2] *= -1
    value, gradient = with_gradients(session, derivatives.gelu, x)
    np.testing.assert_array_equal(value, np.maximum(x, 0))
    np.testing.assert_array_equal(gradient, np.where(x > 0, SLOPES, 0).astype(np.float16))


CONFIG = dict(
    vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=128, hidden_act="gelu", max_position=16, dropout_rate=0.0,
)  # fmt: skip
# The second row has padding.
INPUTS = [np.arange(32).reshape(2, 16) + 5, np.arange(32).reshape(2, 16) % 16 > 7]
INPUTS[0][1, 11:] = 0


def outcome(build, **more):
    """Return names of weights, output and gradients, and the number of backward operations."""
    with tf.Graph().as_default(), tf.Session() as session:
        K.set_session(session)
        model = build(model="bert", **CONFIG, **more)
        random = np.random.RandomState(0)
        K.batch_set_value([(w, random.normal(0, 0.1, w.shape)) for w in model.weights])
        before = len(session.graph.get_operations())
        slopes = tf.gradients(tf.reduce_sum(tf.square(model.output)), model.trainable_weights)
        count = len(session.graph.get_operations()) - before
        dense = [tf.convert_to_tensor(slope) for slope in slopes if slope is not None]
        values = session.run([model.output, *dense], dict(zip(model.inputs, INPUTS)))
        return [w.name for w in model.weights], values, count


@pytest.mark.parametrize("count", [1, 7, 8, 19])
def test_the_gradient_of_positions_is_a_sum_over_any_batch(session, count):
    x = np.random.RandomState(8).normal(0, 1, (count, 5, 16))
    slopes = np.random.RandomState(9).normal(0, 1, x.shape)
    tensors = [tf.constant(x), tf.constant(ROWS[0])]
    value = derivatives.add_rows(*tensors)
    found = session.run([value, *tf.gradients(value, tensors, tf.constant(slopes))])
    check_equal(found, [x + ROWS[0], slopes, slopes.sum(0)])


@pytest.mark.parametrize(
    "application, xla", [("encoder", False), ("unilm", False), ("unilm", True)]
)
def test_a_model_has_the_same_values_gradients_and_names(session, monkeypatch, application, xla):
    monkeypatch.setattr(derivatives.configuring, "compiles", lambda: xla)
    theirs_ = outcome(backend.bert4keras("models").build_transformer_model, application=application)
    ours = outcome(
        lambda model, **sizes: encoders.build({"model_type": model}, **sizes).model,
        application=application,
    )
    assert ours[0] == theirs_[0]
    assert len(ours[1]) == len(theirs_[1]) > 20
    for found, expected in zip(ours[1], theirs_[1]):
        # A bias of the keys changes nothing: its gradient is what rounding leaves, 1e-10.
        tolerance = 1e-4 * np.abs(expected).max() + 1e-8
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=tolerance)
    assert xla or ours[2] < 0.9 * theirs_[2]


def attend(rate, **settings):
    """Return the output of attention over random vectors; the second text has padding."""
    layer = backend.bert4keras("models").MultiHeadAttention(
        heads=2, head_size=4, attention_dropout=rate, kernel_initializer="ones", name="look",
        **settings,
    )  # fmt: skip
    x = tf.constant(QUERY.reshape(2, 15, 4), tf.float32)
    mask = tf.constant(np.arange(15) < np.array([[15], [9]]))
    return layer([x, x, x], mask=[mask] * 3)


def test_dropout_of_attention_keeps_the_mean_and_depends_on_the_step(session):
    derivatives.install()
    step = dropout.install(seed=3)
    dropped = attend(0.3)
    with dropout.inference():
        whole = attend(0.3)
    session.run(tf.global_variables_initializer())
    runs = np.array([session.run(dropped, {step: i}) for i in range(200)])
    error = runs.std(0) / np.sqrt(len(runs))
    assert (np.abs(runs.mean(0) - session.run(whole)) <= 5 * error + 1e-6).all()
    assert np.abs(runs[0] - runs[1]).max() > 0.5
    np.testing.assert_array_equal(session.run(dropped, {step: 1}), runs[1])
