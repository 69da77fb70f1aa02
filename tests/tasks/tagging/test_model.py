"""Losses of the heads that find entities, compared with their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from amp_xla.backend import configuring, tf
from amp_xla.tasks.tagging import model as tagging

LENGTHS, SIZE, TAGS = (5, 3, 2, 0), 5, 3


@pytest.fixture
def batch():
    """Scores, labels, weights and transitions of texts of several lengths."""
    source = np.random.RandomState(1)
    weights = (np.arange(SIZE) < np.array(LENGTHS)[:, None]).astype(np.float32)
    labels = (source.randint(TAGS, size=weights.shape) * weights).astype(np.int32)
    scores = (4 * source.randn(*weights.shape, TAGS)).astype(np.float32)
    return scores, labels, weights, source.randn(TAGS, TAGS).astype(np.float32)


def evaluated(*tensors):
    with tf.Session() as session:
        return session.run(list(tensors))


@pytest.mark.parametrize("longest", [0, SIZE, 64], ids=["loop", "xla", "longer"])
def test_the_loss_of_a_crf_is_minus_log_p_of_all_paths(monkeypatch, batch, longest):
    monkeypatch.setattr(configuring, "compiles", lambda: bool(longest))
    scores, labels, weights, transitions = batch

    def total(row, path):
        steps = sum(float(transitions[a, b]) for a, b in zip(path, path[1:]))
        return steps + sum(float(scores[row, i, tag]) for i, tag in enumerate(path))

    expected = 0.0
    for row, length in enumerate(LENGTHS[:3]):
        paths = itertools.product(range(TAGS), repeat=length)
        every = np.logaddexp.reduce([total(row, path) for path in paths])
        expected += every - total(row, labels[row, :length])
    with tf.Graph().as_default():
        given = tf.constant(scores)
        moves = tf.constant(transitions)
        loss = tagging.crf_loss(labels, given, weights, moves, longest)
        assert (longest == 0) == any(op.type == "Enter" for op in loss.graph.get_operations())
        found, gradient, of_moves = evaluated(loss, *tf.gradients(loss, [given, moves]))
    assert found == pytest.approx(expected, rel=1e-6)
    # Probabilities minus labels: padding has none, and each token's add up to nothing.
    assert not gradient[weights == 0].any() and abs(gradient.sum(-1)).max() < 1e-5
    assert np.isfinite(of_moves).all() and abs(of_moves.sum()) < 1e-5


def test_the_loss_of_spans_is_its_definition():
    source = np.random.RandomState(2)
    scores = (3 * source.randn(2, 2, 4, 4)).astype(np.float32)
    scores[:, :, :, 3] = -np.inf  # padding in bert4keras 0.11.5
    labels = (source.rand(2, 2, 4, 4) < 0.2) & np.isfinite(scores)
    expected = [
        np.mean([
            np.log1p(np.exp(score[~label]).sum()) + np.log1p(np.exp(-score[label]).sum())
            for score, label in zip(*pair)
        ])
        for pair in zip(scores.astype(np.float64), labels)
    ]  # fmt: skip
    with tf.Graph().as_default():
        given = tf.constant(scores)
        loss = tagging.span_loss(tf.constant(labels), given)
        found, gradient = evaluated(loss, *tf.gradients(loss, given))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.isfinite(gradient).all() and not gradient[:, :, :, 3].any()
