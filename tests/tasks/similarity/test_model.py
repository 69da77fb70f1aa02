"""Losses of similarity against their definitions."""

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.tasks.similarity import model as similarity

RANDOM = np.random.RandomState(0)
LABELS = np.array([0, 1, 1, 0, 0.4, 0, 1], np.float32)
WEIGHTS = np.array([1, 1, 1, 1, 1, 0, 0], np.float32)


def run(loss, *values):
    """Return a loss and its gradient by the first value."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.constant(value) for value in values]
        result = loss(*tensors)
        return session.run([result, tf.gradients(result, tensors[0])[0]])


def test_cosent_is_its_definition_and_padding_has_no_effect():
    cosine = RANDOM.uniform(-1, 1, 7).astype(np.float32)
    terms = [
        np.exp(20.0 * (float(cosine[i]) - float(cosine[j])))
        for i in range(5)
        for j in range(5)
        if LABELS[i] < LABELS[j]
    ]
    loss, gradient = run(similarity.cosent, cosine, LABELS, WEIGHTS)
    assert loss == pytest.approx(np.log1p(np.sum(terms)), rel=1e-5)
    assert np.abs(gradient[:5]).min() > 0 and not gradient[5:].any()
    worst = np.array([1, -1, -1, 1, 1, 1, 1], np.float32)  # e ** 40
    assert run(similarity.cosent, worst, LABELS, WEIGHTS)[0] == pytest.approx(40.0, abs=3)


def test_simcse_is_the_cross_entropy_of_the_pairs_of_a_batch():
    pairs = RANDOM.randn(7, 2, 16).astype(np.float32)
    pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
    alike = pairs[:5, 0].astype(np.float64) @ pairs[:5, 1].T / 0.05
    expected = (np.log(np.exp(alike).sum(1)) - alike.diagonal()).mean()
    loss, gradient = run(similarity.in_batch, pairs, WEIGHTS)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert np.abs(gradient[:5]).max() > 0 and not gradient[5:].any()


@pytest.mark.parametrize("padding", [True, False])
def test_batches_without_a_pair_to_compare(padding):
    nothing, same = np.zeros(7, np.float32), np.full(7, 0.5, np.float32)
    weights = nothing if padding else WEIGHTS
    for loss, values in (
        (similarity.cosent, (same, same, weights)),
        (similarity.in_batch, (np.zeros((7, 2, 16), np.float32), nothing)),
    ):
        result, gradient = run(loss, *values)
        assert result == 0.0 and not gradient.any()
