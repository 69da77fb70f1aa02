"""Scores of similarities. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List

import numpy as np

from amp_xla.data.text.labels import Scale
from amp_xla.report.scores import correlations
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import LabelScores, NumberScores, Samples, SampleScores, Scorer


@dataclasses.dataclass(frozen=True)
class BinaryPairScores(LabelScores):
    """Scores of the labels 0 and 1, and of ``values``: the similarities, float64 [N]."""

    values: np.ndarray

    def rows(self) -> np.ndarray:
        return np.concatenate([super().rows(), self.values[:, None]], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return {**super().score(rows), **correlations(rows[:, 0], rows[:, 2])}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of samples; return the function that scores the answers to them."""
    binary = Scale.load(checkpoint.file("labels.json")).binary
    if binary:
        samples.check(samples.wanted, ("0", "1"))

    def score(answers: List[Dict[str, Any]]) -> SampleScores:
        values = np.array([answer["score"] for answer in answers], np.float64)
        if binary:
            return BinaryPairScores.of(samples, ("0", "1"), answers, values)
        return NumberScores(samples, values)

    return score
