"""Losses of models and of tasks against their definitions in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from amp_xla.backend import configuring, tf
from amp_xla.models import losses
from amp_xla.tasks.relations import model as relations
from amp_xla.tasks.similarity import model as similarity
from amp_xla.tasks.tagging import model as tagging

LOGITS = np.random.RandomState(0).randn(6, 5).astype(np.float32) * 3
LABELS = np.array([0, 4, 2, 2, 1, 0])
WEIGHTS = np.array([1, 1, 1, 1, 0, 0], np.float32)


@pytest.mark.parametrize("smoothing, factors", [(0.0, None), (0.1, [1.0, 2.0, 0.5, 1.0, 4.0])])
def test_cross_entropy_with_smoothing_and_class_weights(session, smoothing, factors):
    target = np.eye(5)[LABELS] * (1 - smoothing) + smoothing / 5
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    each = -(target * np.log(chances)).sum(-1)
    expected = (each * (np.array(factors)[LABELS] if factors else 1))[:4].mean()
    pair = losses.classification(LABELS, tf.constant(LOGITS), WEIGHTS, smoothing, factors)
    loss, accuracy = session.run(pair)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert accuracy == (LOGITS.argmax(-1) == LABELS)[:4].mean()


HOT = np.random.RandomState(1).randint(0, 2, LOGITS.shape)


def test_several_labels_are_compared_with_zero(session):
    """The formula of bert4keras' author, and the gradient that it has on paper."""
    right, wrong = np.exp(-LOGITS) * HOT, np.exp(LOGITS) * (1 - HOT)
    expected = np.log(1 + right.sum(-1)) + np.log(1 + wrong.sum(-1))
    slope = wrong / (1 + wrong.sum(-1, keepdims=True)) - right / (1 + right.sum(-1, keepdims=True))
    logits = tf.constant(LOGITS)
    each, pair = losses.cross_entropy(HOT, logits), losses.classification(HOT, logits, WEIGHTS)
    fetches = each, *pair, tf.gradients(each, logits)[0]
    each, loss, accuracy, gradient = session.run(fetches)
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(expected[:4].mean(), rel=1e-5)
    assert accuracy == ((LOGITS > 0) == (HOT > 0)).all(-1)[:4].mean()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_several_labels_of_extreme_logits_are_finite(session, dtype):
    logits = tf.constant(np.array([[6e4, -6e4, 6e4], [-6e4, -6e4, -6e4]], dtype))
    loss = losses.cross_entropy(np.array([[1, 0, 0], [0, 0, 0]]), logits)
    loss, slope = session.run([loss, tf.gradients(loss, logits)[0]])
    np.testing.assert_allclose(loss, [6e4, 0], rtol=1e-3)
    np.testing.assert_allclose(slope, [[0, 0, 1], [0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_the_divergence_is_both_kl_divergences(session, several):
    other = np.random.RandomState(2).randn(*LOGITS.shape).astype(np.float32)
    pairs = [np.float64(x) for x in (LOGITS, other)]
    if several:
        sides = [np.stack([1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))], -1) for x in pairs]
    else:
        sides = [np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in pairs]
    p, q = sides
    expected = (p * np.log(p / q) + q * np.log(q / p)).reshape(len(p), -1).sum(-1)
    build = losses.divergence_of_several if several else losses.divergence
    found = session.run(build(tf.constant(LOGITS), tf.constant(other)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


RANDOM = np.random.RandomState(0)
SIMILAR = np.array([0, 1, 1, 0, 0.4, 0, 1], np.float32)
REAL = np.array([1, 1, 1, 1, 1, 0, 0], np.float32)


@pytest.fixture
def run(session):
    """Return a function: a loss and its gradient by the first value."""

    def with_gradient(loss, *values):
        tensors = [tf.constant(value) for value in values]
        result = loss(*tensors)
        return session.run([result, tf.gradients(result, tensors[0])[0]])

    return with_gradient


def test_cosent_is_its_definition_and_padding_has_no_effect(run):
    cosine = RANDOM.uniform(-1, 1, 7).astype(np.float32)
    terms = [
        np.exp(20.0 * (float(cosine[i]) - float(cosine[j])))
        for i in range(5)
        for j in range(5)
        if SIMILAR[i] < SIMILAR[j]
    ]
    loss, gradient = run(similarity.cosent, cosine, SIMILAR, REAL)
    assert loss == pytest.approx(np.log1p(np.sum(terms)), rel=1e-5)
    assert np.abs(gradient[:5]).min() > 0 and not gradient[5:].any()
    worst = np.array([1, -1, -1, 1, 1, 1, 1], np.float32)  # e ** 40
    assert run(similarity.cosent, worst, SIMILAR, REAL)[0] == pytest.approx(40.0, abs=3)


def test_simcse_is_the_cross_entropy_of_the_pairs_of_a_batch(run):
    pairs = RANDOM.randn(7, 2, 16).astype(np.float32)
    pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
    alike = pairs[:5, 0].astype(np.float64) @ pairs[:5, 1].T / 0.05
    expected = (np.log(np.exp(alike).sum(1)) - alike.diagonal()).mean()
    loss, gradient = run(similarity.in_batch, pairs, REAL)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert np.abs(gradient[:5]).max() > 0 and not gradient[5:].any()


@pytest.mark.parametrize("padding", [True, False])
def test_batches_without_a_pair_to_compare(run, padding):
    nothing, same = np.zeros(7, np.float32), np.full(7, 0.5, np.float32)
    weights = nothing if padding else REAL
    for loss, values in (
        (similarity.cosent, (same, same, weights)),
        (similarity.in_batch, (np.zeros((7, 2, 16), np.float32), nothing)),
    ):
        result, gradient = run(loss, *values)
        assert result == 0.0 and not gradient.any()


CELLS, PLANES, MOST = 7, 4, 3


def dense(targets, scores):
    """The definition: log(1 + sum of exp(s) where negative) + log(1 + sum of exp(-s) where not)."""
    total = np.zeros(len(scores))
    for row, plane in np.ndindex(*scores.shape[:2]):
        flat, wanted = scores[row, plane].astype(np.float64).ravel(), set(targets[row, plane])
        right = np.array([cell in wanted - {0} for cell in range(flat.size)])
        flat[0] = -np.inf  # ([CLS], [CLS])
        total[row] += np.logaddexp.reduce(np.append(flat[~right], 0.0))
        total[row] += np.logaddexp.reduce(np.append(-flat[right], 0.0))
    return total


def triples(scale, mask):
    source = np.random.RandomState(3)
    scores = (scale * source.randn(3, PLANES, CELLS, CELLS)).astype(np.float32)
    scores[1, :, 5:], scores[1, :, :, 5:] = mask, mask  # padding
    scores[:, :2] += np.tril(np.full((CELLS, CELLS), mask, np.float32), -1)
    targets = np.zeros((3, PLANES, MOST), np.int32)
    for row, plane in np.ndindex(2, PLANES):  # the third text has no triple
        rows = source.randint(1, 5, size=(plane % (MOST + 1), 2))
        cells = sorted({r * CELLS + c for r, c in np.sort(rows, 1)})
        targets[row, plane, : len(cells)] = cells
    return targets, scores


@pytest.mark.parametrize("mask", [-1e4, -1e12])
@pytest.mark.parametrize("scale", [1.0, 5.0, 40.0])
def test_the_sparse_loss_is_the_dense_definition(run, scale, mask):
    targets, scores = triples(scale, mask)
    found, gradient = run(lambda given: relations.sparse_loss(targets, given), scores)
    np.testing.assert_allclose(found, dense(targets, scores), rtol=1e-5)
    assert np.isfinite(gradient).all() and not gradient[scores < -1e3].any()
    for cell in np.ndindex(*targets.shape[:2]):  # a positive is pushed up, all others down
        right = np.zeros(CELLS * CELLS, bool)
        right[targets[cell][targets[cell] > 0]] = True
        assert (gradient[cell].ravel()[right] <= 0).all()
        assert (gradient[cell].ravel()[~right] >= 0).all()


def test_a_high_positive_score_does_not_hide_the_negatives(session):
    scores = np.full((1, 1, 3, 3), -2.0, np.float32)
    scores[0, 0, 0, 0], scores[0, 0, 1, 2] = -1e4, 60.0
    (found,) = session.run(relations.sparse_loss(tf.constant([[[5]]]), tf.constant(scores)))
    assert found == pytest.approx(np.log1p(7 * np.exp(-2.0)), rel=1e-5)


LENGTHS, LONGEST, TAGS = (5, 3, 2, 0), 5, 3


@pytest.mark.parametrize("longest", [0, LONGEST, 64], ids=["loop", "xla", "longer"])
def test_the_loss_of_a_crf_is_minus_log_p_of_all_paths(session, monkeypatch, longest):
    monkeypatch.setattr(configuring, "compiles", lambda: bool(longest))
    source = np.random.RandomState(1)
    weights = (np.arange(LONGEST) < np.array(LENGTHS)[:, None]).astype(np.float32)
    labels = (source.randint(TAGS, size=weights.shape) * weights).astype(np.int32)
    scores = (4 * source.randn(*weights.shape, TAGS)).astype(np.float32)
    transitions = source.randn(TAGS, TAGS).astype(np.float32)

    def total(row, path):
        steps = sum(float(transitions[a, b]) for a, b in zip(path, path[1:]))
        return steps + sum(float(scores[row, i, tag]) for i, tag in enumerate(path))

    expected = 0.0
    for row, length in enumerate(LENGTHS[:3]):
        paths = itertools.product(range(TAGS), repeat=length)
        every = np.logaddexp.reduce([total(row, path) for path in paths])
        expected += every - total(row, labels[row, :length])
    given, moves = tf.constant(scores), tf.constant(transitions)
    loss = tagging.crf_loss(labels, given, weights, moves, longest)
    assert (longest == 0) == any(op.type == "Enter" for op in loss.graph.get_operations())
    found, gradient, of_moves = session.run([loss, *tf.gradients(loss, [given, moves])])
    assert found == pytest.approx(expected, rel=1e-6)
    # Probabilities minus labels: padding has none, and each token's add up to nothing.
    assert not gradient[weights == 0].any() and abs(gradient.sum(-1)).max() < 1e-5
    assert np.isfinite(of_moves).all() and abs(of_moves.sum()) < 1e-5


def test_the_loss_of_spans_is_its_definition(run):
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
    found, gradient = run(lambda given: tagging.span_loss(tf.constant(labels), given), scores)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.isfinite(gradient).all() and not gradient[:, :, :, 3].any()
