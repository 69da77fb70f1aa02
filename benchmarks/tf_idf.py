"""What does the cosine of TF-IDF vectors reach on the dev pairs of similarity? NumPy alone.

python -m benchmarks.tf_idf --train train.tsv --dev dev.tsv
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import sys
from typing import Dict, List, Optional, Tuple

import numpy as np

from amp_xla.config import parse
from amp_xla.data.text.options import PairFiles
from amp_xla.data.text.readers import Dataset
from amp_xla.process.exits import exit_code
from amp_xla.report.scores import spearman
from amp_xla.training.metrics import best_threshold

Vector = Dict[str, float]


@dataclasses.dataclass(frozen=True)
class Config:
    """Score the dev pairs by TF-IDF."""

    files: PairFiles = PairFiles()


def words(text: str) -> List[str]:
    """Return words of two or more letters or digits in lower case, as scikit-learn does."""
    return re.findall(r"\b\w\w+\b", text.lower())


def cosines(train: Dataset, dev: Dataset) -> np.ndarray:
    """Return the cosine of each dev pair, float64 [N]; inverse frequencies are of ``train``."""
    documents = {*train.texts, *(train.pairs or [])}
    counts = collections.Counter(word for text in documents for word in set(words(text)))

    def vector(text: str) -> Vector:
        # scikit-learn's smoothed inverse document frequency
        values = {
            word: count * (math.log((1 + len(documents)) / (1 + counts[word])) + 1)
            for word, count in collections.Counter(words(text)).items()
        }
        norm = math.sqrt(sum(value * value for value in values.values())) or 1.0
        return {word: value / norm for word, value in values.items()}

    pairs = ((vector(a), vector(b)) for a, b in zip(dev.texts, dev.pairs or []))
    return np.array([sum(value * b.get(word, 0.0) for word, value in a.items()) for a, b in pairs])


def scores(train: Dataset, dev: Dataset) -> Tuple[float, Optional[float]]:
    """Return Spearman's correlation, and of labels 0 and 1 the accuracy by the best threshold."""
    labels = np.array([float(label) for label in dev.labels or []])
    values = cosines(train, dev)
    binary = set(labels) == {0.0, 1.0}
    return spearman(labels, values), best_threshold(labels > 0.5, values)[1] if binary else None


def main() -> int:
    """Print the scores."""
    correlation, accuracy = scores(*parse(Config, prog="python -m benchmarks.tf_idf").files.read(1))
    share = "" if accuracy is None else f", accuracy {accuracy:.4f} by the best threshold"
    print(f"TF-IDF cosine: spearman {correlation:.4f}{share}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
