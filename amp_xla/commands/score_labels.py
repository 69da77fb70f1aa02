"""Scores of classifiers on labelled texts, for ``amp-xla evaluate RUN --file``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from amp_xla.errors import AmpXlaError
from amp_xla.report import scores
from amp_xla.training.metrics import auc, confusion


class Answered(NamedTuple):
    """A run's predictions.

    Attributes:
      names: labels of the run.
      labels, predicted: int [N], numbers of ``names``.
      chances: probability of each label, float64 [N, labels].
      scores: scores of pairs, float64 [N]; None if the run has none.
    """

    run: Path
    checkpoint: str
    texts: List[str]
    names: Tuple[str, ...]
    labels: np.ndarray
    predicted: np.ndarray
    chances: np.ndarray
    scores: Optional[np.ndarray] = None

    @property
    def columns(self) -> Tuple[str, ...]:
        """Return the column names of ``errors.tsv``."""
        return ("sample", "label", "predicted", "probability", "probability_of_label", "text")

    def result(self, seed: int) -> Dict[str, Any]:
        """Return the scores for ``result.json``."""
        labels, predicted, names = self.labels, self.predicted, self.names
        matrix = confusion(labels, predicted, len(names))
        each = scores.per_label(matrix)
        error, bins = scores.calibration(self.chances.max(1), predicted == labels)
        metrics: Dict[str, Any] = {
            name: value._asdict() for name, value in scores.metrics(labels, predicted, seed).items()
        }
        loss = -np.log(np.maximum(self._chances_of_labels(), 1e-12)).mean()
        metrics["loss"] = {"value": float(loss)}
        if len(names) == 2:
            metrics["auc"] = {"value": auc(labels == 1, self.chances[:, 1])}
        metrics["calibration_error"] = {"value": error}
        if self.scores is not None:
            correlations = scores.correlations(labels, self.scores, seed)
            metrics.update({name: value._asdict() for name, value in correlations.items()})
        mistakes = [
            (int(matrix[i, j]), names[i], names[j]) for i, j in np.argwhere(matrix) if i != j
        ]
        return {
            "metrics": metrics,
            "per_label": scores.rows(names, each),
            "confusion": matrix.tolist(),
            "mistakes": sorted(mistakes, key=lambda mistake: -mistake[0])[:10],
            "calibration": bins,
        }

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return the misclassified samples, the least probable label first."""
        order = np.argsort(self._chances_of_labels(), kind="stable")
        wrong = [int(i) for i in order if self.predicted[i] != self.labels[i]]
        return [self._error(i) for i in wrong[:most]]

    def against(self, other: Answered, seed: int) -> Dict[str, Any]:
        """Return the comparison with another run on the same samples."""
        columns = [np.array(self.names)[numbers] for numbers in (self.labels, self.predicted)]
        columns += [np.array(other.names)[numbers] for numbers in (other.labels, other.predicted)]
        _, numbers = np.unique(np.concatenate(columns), return_inverse=True)
        labels, first, same, second = numbers.reshape(4, -1)
        if not np.array_equal(labels, same):
            raise AmpXlaError(
                f"{self.run} and {other.run} read different labels from the file, so they cannot "
                f"be compared; --text-field and --label-field of their training decide"
            )
        result = scores.compare(labels, first, second, seed)
        for name in ("accuracy", "macro_f1"):
            result[name] = result[name]._asdict()
        return {"run": str(other.run), **result}

    def _chances_of_labels(self) -> np.ndarray:
        """Return the probability of each sample's label, float64 [N]."""
        chances: np.ndarray = self.chances[np.arange(len(self.labels)), self.labels]
        return chances

    def _error(self, i: int) -> Dict[str, Any]:
        label, predicted = int(self.labels[i]), int(self.predicted[i])
        return {
            "sample": i + 1, "label": self.names[label], "predicted": self.names[predicted],
            "probability": float(self.chances[i, predicted]),
            "probability_of_label": float(self.chances[i, label]), "text": self.texts[i],
        }  # fmt: skip
