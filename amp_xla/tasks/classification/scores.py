"""Scores of predicted labels or numbers. Imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import numpy as np

from amp_xla.training import sample_scores
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import NumberScores, Samples, Scorer

POINTS = 500  # of the scatter plot


class RegressionScores(NumberScores):
    """Scores of numbers, and the points of a scatter plot."""

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        error = float(np.abs(rows[:, 0] - rows[:, 1]).mean())
        return {**super().score(rows), "mean_absolute_error": error}

    def details(self) -> Dict[str, Any]:
        return {"scatter": self.rows()[:POINTS].tolist()}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Return the function that scores the answers to samples."""
    if Path(checkpoint.file("labels.json")).read_bytes()[:1] != b"{":
        return sample_scores.scored(checkpoint, samples)
    return lambda answers: RegressionScores(samples, np.array([each["score"] for each in answers]))
