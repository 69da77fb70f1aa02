"""GPLinker's loss against its dense definition in NumPy."""

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.tasks.relations import model

SIZE, PLANES, MOST = 7, 4, 3


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


def made(scale, mask):
    source = np.random.RandomState(3)
    scores = (scale * source.randn(3, PLANES, SIZE, SIZE)).astype(np.float32)
    scores[1, :, 5:], scores[1, :, :, 5:] = mask, mask  # padding
    scores[:, :2] += np.tril(np.full((SIZE, SIZE), mask, np.float32), -1)
    targets = np.zeros((3, PLANES, MOST), np.int32)
    for row, plane in np.ndindex(2, PLANES):  # the third text has no triple
        rows = source.randint(1, 5, size=(plane % (MOST + 1), 2))
        cells = sorted({r * SIZE + c for r, c in np.sort(rows, 1)})
        targets[row, plane, : len(cells)] = cells
    return targets, scores


@pytest.mark.parametrize("mask", [-1e4, -1e12])
@pytest.mark.parametrize("scale", [1.0, 5.0, 40.0])
def test_the_sparse_loss_is_the_dense_definition(scale, mask):
    targets, scores = made(scale, mask)
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.constant(scores)
        loss = model.sparse_loss(tf.constant(targets), given)
        found, gradient = session.run([loss, tf.gradients(loss, given)[0]])
    np.testing.assert_allclose(found, dense(targets, scores), rtol=1e-5)
    assert np.isfinite(gradient).all() and not gradient[scores < -1e3].any()
    for cell in np.ndindex(*targets.shape[:2]):  # a positive is pushed up, all others down
        right = np.zeros(SIZE * SIZE, bool)
        right[targets[cell][targets[cell] > 0]] = True
        assert (gradient[cell].ravel()[right] <= 0).all()
        assert (gradient[cell].ravel()[~right] >= 0).all()


def test_a_high_positive_score_does_not_hide_the_negatives():
    scores = np.full((1, 1, 3, 3), -2.0, np.float32)
    scores[0, 0, 0, 0], scores[0, 0, 1, 2] = -1e4, 60.0
    with tf.Graph().as_default(), tf.Session() as session:
        (found,) = session.run(model.sparse_loss(tf.constant([[[5]]]), tf.constant(scores)))
    assert found == pytest.approx(np.log1p(7 * np.exp(-2.0)), rel=1e-5)
