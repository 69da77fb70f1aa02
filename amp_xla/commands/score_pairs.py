"""Scores of a run whose answers are numbers: how it orders pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from amp_xla.report import scores


class Scored(NamedTuple):
    """A run's scores of pairs.

    Attributes:
      labels, values: of the file and of the run, float64 [N].
    """

    run: Path
    checkpoint: str
    texts: List[str]
    labels: np.ndarray
    values: np.ndarray

    @property
    def columns(self) -> Tuple[str, ...]:
        """Return the names of the values of an error."""
        return ("sample", "label", "score", "text")

    def result(self, file: str, seed: int) -> Dict[str, Any]:
        """Return the content of ``result.json``."""
        found = scores.correlations(self.labels, self.values, seed)
        return {
            "run": str(self.run), "file": file, "checkpoint": self.checkpoint,
            "samples": len(self.labels), "seed": seed,
            "metrics": {name: value._asdict() for name, value in found.items()},
            "per_label": [], "errors": [], "against": [],
        }  # fmt: skip

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return the pairs whose rank is farthest from the label's."""
        away = np.abs(scores.ranks(self.labels) - scores.ranks(self.values))
        return [
            dict(zip(self.columns, (i + 1, float(self.labels[i]), float(self.values[i]), text)))
            for i, text in ((i, self.texts[i]) for i in np.argsort(-away, kind="stable")[:most])
        ]

    def against(self, other: Scored, seed: int) -> Dict[str, Any]:
        """Return the comparison with another run on the same samples."""
        found = scores.correlations(self.labels, self.values, seed, other.values)
        return {"run": str(other.run), "spearman": found["spearman"]._asdict()}
