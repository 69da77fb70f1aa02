"""Scores of labelled samples are equal to scikit-learn's."""

from pathlib import Path

import numpy as np
import pytest

from amp_xla.report import scores
from amp_xla.training.sample_scores import LabelScores, Samples

pytestmark = pytest.mark.once


def answers(samples, classes, right, seed):
    """Return labels of different frequencies, and predictions of which a share is right."""
    source = np.random.RandomState(seed)
    share = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
    labels = source.choice(classes, samples, p=share)
    predicted = np.where(
        source.rand(samples) < right, labels, source.randint(classes, size=samples)
    )
    return labels, predicted


def labelled(labels, predicted):
    """Return these predictions as the answers of a run."""
    names, classes = tuple("abcdefghijklmnopqrstuvwxyzABCD"), max(labels.max(), predicted.max()) + 1
    samples = Samples(Path("run"), "", "", [""] * len(labels), [names[i] for i in labels])
    return LabelScores(samples, names[:classes], np.eye(classes)[predicted])


# By scikit-learn 1.9.1 for `answers(400, classes, 0.6, seed)`, all labels, zero_division=0:
# accuracy; then the means over labels of precision, recall and F1.
SCIKIT_LEARN = {
    (2, 1): (0.8075, 0.7823641765704584, 0.8020517040778683, 0.7894895120667619),
    (5, 2): (0.7, 0.6685334047454202, 0.7122315592903827, 0.6758555089287539),
    (30, 3): (0.5775, 0.5127276060899361, 0.5513853502911473, 0.510226830606716),
}


@pytest.mark.parametrize("classes,seed", SCIKIT_LEARN)
def test_scores_are_those_of_scikit_learn(classes, seed):
    labels, predicted = answers(400, classes, 0.6, seed)
    each = scores.per_label(scores.confusion(labels, predicted, classes))
    found = labelled(labels, predicted).result(seed)["metrics"]
    means = [each[name].mean() for name in ("precision", "recall", "f1")]
    np.testing.assert_allclose([found["accuracy"]["value"], *means], SCIKIT_LEARN[classes, seed])
    assert found["macro_f1"]["value"] == pytest.approx(means[2])


def test_mcnemar_and_the_direction_of_a_comparison():
    assert scores.mcnemar(10, 10) == 1.0 and scores.mcnemar(0, 2000) < 1e-300
    assert scores.mcnemar(1, 9) == pytest.approx(2 * (1 + 10) / 1024)
    labels, worse = answers(500, 3, 0.5, 1)
    pair = labelled(labels, labels).against(labelled(labels, worse), 1)
    assert pair["accuracy"]["low"] > 0 and pair["only_second"] == 0 and pair["p"] < 1e-9


def test_calibration_error():
    source = np.random.RandomState(1)
    confidence = source.uniform(0.3, 1.0, 100_000)
    error, bins = scores.calibration(confidence, source.rand(100_000) < confidence)
    assert error < 0.01 and len(bins) == 7
    error, bins = scores.calibration(np.ones(4), np.array([True, True, False, False]))
    assert (error, bins) == (0.5, [{"confidence": 1.0, "accuracy": 0.5, "count": 4}])
