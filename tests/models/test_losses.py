"""Losses against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.backend import tf
from amp_xla.errors import AmpXlaError
from amp_xla.models import losses

LOGITS = np.random.RandomState(0).randn(6, 5).astype(np.float32) * 3
LABELS = np.array([0, 4, 2, 2, 1, 0])
WEIGHTS = np.array([1, 1, 1, 1, 0, 0], np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothing_spreads_a_share_of_the_label_over_all(smoothing):
    target = np.eye(5)[LABELS] * (1 - smoothing) + smoothing / 5
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    expected = -(target * np.log(chances)).sum(-1)[:4].mean()
    with tf.Graph().as_default(), tf.Session() as session:
        pair = losses.classification(LABELS, tf.constant(LOGITS), WEIGHTS, smoothing)
        loss, accuracy = session.run(pair)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert accuracy == (LOGITS.argmax(-1) == LABELS)[:4].mean()


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_impossible_smoothing_is_refused(smoothing):
    with pytest.raises(AmpXlaError, match="label smoothing is"):
        losses.classification(LABELS, LOGITS, WEIGHTS, smoothing)
