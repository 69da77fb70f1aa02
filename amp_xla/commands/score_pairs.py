"""Scores of a run that predicts numbers: how well it ranks pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from amp_xla.report import scores


class Scored(NamedTuple):
    """A run's scores of pairs.

    Attributes:
      labels, values: labels of the file and scores of the run, float64 [N].
    """

    run: Path
    checkpoint: str
    texts: List[str]
    labels: np.ndarray
    values: np.ndarray

    @property
    def columns(self) -> Tuple[str, ...]:
        """Return the column names of ``errors.tsv``."""
        return ("sample", "label", "score", "text")

    def result(self, seed: int) -> Dict[str, Any]:
        """Return the scores for ``result.json``."""
        correlations = scores.correlations(self.labels, self.values, seed)
        metrics = {name: value._asdict() for name, value in correlations.items()}
        return {"metrics": metrics, "per_label": []}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return the pairs whose rank is farthest from the label's."""
        away = np.abs(scores.ranks(self.labels) - scores.ranks(self.values))
        return [
            dict(zip(self.columns, (i + 1, float(self.labels[i]), float(self.values[i]), text)))
            for i, text in ((i, self.texts[i]) for i in np.argsort(-away, kind="stable")[:most])
        ]

    def against(self, other: Scored, seed: int) -> Dict[str, Any]:
        """Return the comparison with another run on the same samples."""
        differences = scores.correlations(self.labels, self.values, seed, other.values)
        return {"run": str(other.run), "spearman": differences["spearman"]._asdict()}
