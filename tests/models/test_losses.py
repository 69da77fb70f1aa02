"""Losses against NumPy."""

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.models import losses

LOGITS = np.random.RandomState(0).randn(6, 5).astype(np.float32) * 3
LABELS = np.array([0, 4, 2, 2, 1, 0])
WEIGHTS = np.array([1, 1, 1, 1, 0, 0], np.float32)


@pytest.mark.parametrize("smoothing, factors", [(0.0, None), (0.1, [1.0, 2.0, 0.5, 1.0, 4.0])])
def test_cross_entropy_with_smoothing_and_class_weights(smoothing, factors):
    target = np.eye(5)[LABELS] * (1 - smoothing) + smoothing / 5
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    each = -(target * np.log(chances)).sum(-1)
    expected = (each * (np.array(factors)[LABELS] if factors else 1))[:4].mean()
    with tf.Graph().as_default(), tf.Session() as session:
        pair = losses.classification(LABELS, tf.constant(LOGITS), WEIGHTS, smoothing, factors)
        loss, accuracy = session.run(pair)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert accuracy == (LOGITS.argmax(-1) == LABELS)[:4].mean()


HOT = np.random.RandomState(1).randint(0, 2, LOGITS.shape)


def test_several_labels_are_compared_with_zero():
    """The formula of bert4keras' author, and the gradient that it has on paper."""
    right, wrong = np.exp(-LOGITS) * HOT, np.exp(LOGITS) * (1 - HOT)
    expected = np.log(1 + right.sum(-1)) + np.log(1 + wrong.sum(-1))
    slope = wrong / (1 + wrong.sum(-1, keepdims=True)) - right / (1 + right.sum(-1, keepdims=True))
    with tf.Graph().as_default(), tf.Session() as session:
        logits = tf.constant(LOGITS)
        each = losses.cross_entropy(HOT, logits)
        loss, accuracy = losses.classification(HOT, logits, WEIGHTS)
        gradient = tf.gradients(each, logits)[0]
        each, loss, accuracy, gradient = session.run([each, loss, accuracy, gradient])
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(expected[:4].mean(), rel=1e-5)
    assert accuracy == ((LOGITS > 0) == (HOT > 0)).all(-1)[:4].mean()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_several_labels_of_extreme_logits_are_finite(dtype):
    with tf.Graph().as_default(), tf.Session() as session:
        logits = tf.constant(np.array([[6e4, -6e4, 6e4], [-6e4, -6e4, -6e4]], dtype))
        loss = losses.cross_entropy(np.array([[1, 0, 0], [0, 0, 0]]), logits)
        loss, slope = session.run([loss, tf.gradients(loss, logits)[0]])
    np.testing.assert_allclose(loss, [6e4, 0], rtol=1e-3)
    np.testing.assert_allclose(slope, [[0, 0, 1], [0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_the_divergence_is_both_kl_divergences(several):
    other = np.random.RandomState(2).randn(*LOGITS.shape).astype(np.float32)
    pairs = [np.float64(x) for x in (LOGITS, other)]
    if several:
        sides = [np.stack([1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))], -1) for x in pairs]
    else:
        sides = [np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in pairs]
    p, q = sides
    expected = (p * np.log(p / q) + q * np.log(q / p)).reshape(len(p), -1).sum(-1)
    build = losses.divergence_of_several if several else losses.divergence
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(build(tf.constant(LOGITS), tf.constant(other)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
