"""Scores of similarities. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List

import numpy as np

from amp_xla.report import scores
from amp_xla.tasks.similarity.data import Scale
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import LabelScores, Samples, SampleScores, Scorer


@dataclasses.dataclass(frozen=True)
class PairScores(SampleScores):
    """Scores of similarities; errors are sorted by the distance between their rank and the label's.

    Attributes:
      values: predicted similarities, float64 [N]; the labels are numbers, too.
    """

    values: np.ndarray
    columns = ("sample", "label", "score", "text")
    metric = "spearman"

    def rows(self) -> np.ndarray:
        return np.stack([np.array(self.samples.wanted, np.float64), self.values], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return _correlations(rows[:, 0], rows[:, 1])

    def errors(self, most: int) -> List[Dict[str, Any]]:
        labels, values = self.rows().T
        order = np.argsort(-np.abs(scores.ranks(labels) - scores.ranks(values)), kind="stable")
        return self._listed(order[:most].tolist(), labels.tolist(), values.tolist())


@dataclasses.dataclass(frozen=True)
class BinaryPairScores(LabelScores):
    """Scores of the labels 0 and 1, and of the similarities.

    Attributes:
      values: predicted similarities, float64 [N].
    """

    values: np.ndarray

    def rows(self) -> np.ndarray:
        return np.concatenate([super().rows(), self.values[:, None]], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return {**super().score(rows), **_correlations(rows[:, 0], rows[:, 2])}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of samples; return the function that scores the answers to them."""
    binary = Scale.load(checkpoint.file("labels.json")).binary
    if binary:
        samples.check(samples.wanted, ("0", "1"))

    def score(answers: List[Dict[str, Any]]) -> SampleScores:
        values = np.array([answer["score"] for answer in answers], np.float64)
        if binary:
            return BinaryPairScores.of(samples, ("0", "1"), answers, values)
        return PairScores(samples, values)

    return score


def _correlations(labels: np.ndarray, values: np.ndarray) -> Dict[str, float]:
    return {
        "spearman": scores.spearman(labels, values),
        "pearson": scores.pearson(labels, values),
    }
