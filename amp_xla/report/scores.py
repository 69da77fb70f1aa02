"""Scores of predictions on labelled samples, with intervals; comparison of two runs.

Intervals come from the bootstrap. Accuracy and F1 depend only on how often each combination of
label and prediction occurs, so a resampled test set is one draw of those counts.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

DRAWS = 2000
_BINS = 10


class Interval(NamedTuple):
    """A value and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def per_label(confusion: np.ndarray) -> Dict[str, np.ndarray]:
    """Return precision, recall and F1, float64 [classes], and support, int64 [classes].

    A ratio of nothing is 0, as for a label that is never predicted.

    Args:
      confusion: int64 [classes, classes]: row = label, column = prediction.
    """
    return per_entity(np.stack([np.diag(confusion), confusion.sum(0), confusion.sum(1)], 1))


def per_entity(counts: np.ndarray) -> Dict[str, np.ndarray]:
    """Return precision, recall and F1 of each label, and support, as ``per_label`` does.

    Args:
      counts: correct, predicted and true entities, int64 [labels, 3].
    """
    right, found, support = counts.T
    return {
        "precision": _ratio(right, found),
        "recall": _ratio(right, support),
        "f1": _ratio(2 * right, found + support),
        "support": support,
    }


def rows(names: Sequence[str], each: Mapping[str, np.ndarray]) -> List[Dict[str, Any]]:
    """Return the scores of ``per_label`` or ``per_entity`` as a dictionary per label."""
    return [
        {"label": name, **{key: values[i].item() for key, values in each.items()}}
        for i, name in enumerate(names)
    ]


def entity_metrics(counts: np.ndarray, seed: int) -> Dict[str, Interval]:
    """Return ``f1``, ``precision`` and ``recall`` over all entities.

    Args:
      counts: correct, predicted and true entities of each text, int64 [texts, 3].
      seed: seed of the bootstrap over texts.
    """
    cells, times = _resampled(counts, seed)
    each = per_entity(times @ cells)
    return {name: interval(each[name]) for name in ("f1", "precision", "recall")}


def compare_entities(first: np.ndarray, second: np.ndarray, seed: int) -> Interval:
    """Return how much higher the first F1 is; arguments as for ``entity_metrics``."""
    cells, times = _resampled(np.concatenate([first, second], 1), seed)
    f1 = [per_entity(times @ side)["f1"] for side in (cells[:, :3], cells[:, 3:])]
    return interval(f1[0] - f1[1])


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.where(below > 0, above / np.maximum(below, 1), 0.0)


def metrics(labels: np.ndarray, predicted: np.ndarray, seed: int) -> Dict[str, Interval]:
    """Return ``accuracy`` and ``macro_f1``, the latter over the labels that occur.

    Args:
      labels, predicted: int [N].
      seed: seed of the bootstrap.
    """
    cells, counts = _resampled(np.stack([labels, predicted], 1), seed)
    return {
        name: interval(score(cells[:, 0], cells[:, 1], counts)) for name, score in _SCORES.items()
    }


def compare(labels: np.ndarray, first: np.ndarray, second: np.ndarray, seed: int) -> Dict[str, Any]:
    """Return how much better the first of two classifiers is on the same samples.

    Args:
      labels: int [N].
      first, second: predictions, int [N].
      seed: seed of the bootstrap.

    Returns:
      ``accuracy``, ``macro_f1``: difference as ``Interval``; ``only_first``, ``only_second``:
      samples that only one of them classifies correctly; ``p``: of McNemar's exact test.
    """
    cells, counts = _resampled(np.stack([labels, first, second], 1), seed)
    label, one, other = cells.T
    result: Dict[str, Any] = {
        name: interval(score(label, one, counts) - score(label, other, counts))
        for name, score in _SCORES.items()
    }
    only_first = int(((first == labels) & (second != labels)).sum())
    only_second = int(((first != labels) & (second == labels)).sum())
    p = mcnemar(only_first, only_second)
    return {**result, "only_first": only_first, "only_second": only_second, "p": p}


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values from 1, float64 [N]; equal values share their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    each: np.ndarray = np.cumsum(count) - (count - 1) / 2.0
    return each[place.reshape(-1)]


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of two columns, float [N]; NaN if one of them is constant."""
    first, second = (
        np.asarray(x, np.float64) - np.mean(x, dtype=np.float64) for x in (first, second)
    )
    norm = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / norm if norm else math.nan


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of the ranks of two columns, float [N]; NaN if one of them is constant."""
    return pearson(ranks(first), ranks(second))


def correlations(
    labels: np.ndarray, values: np.ndarray, seed: int, others: Optional[np.ndarray] = None
) -> Dict[str, Interval]:
    """Return ``spearman`` and ``pearson`` of scores, or how much higher than those of ``others``.

    Args:
      labels, values, others: float [N].
      seed: seed of the bootstrap.
    """
    source, total = np.random.RandomState(seed), len(labels)
    drawn = [np.arange(total), *(source.randint(total, size=total) for _ in range(DRAWS))]
    result = {}
    for name, of in (("spearman", spearman), ("pearson", pearson)):
        found = np.array([of(labels[some], values[some]) for some in drawn])
        if others is not None:
            found -= [of(labels[some], others[some]) for some in drawn]
        low, high = np.nanpercentile(found[1:], [2.5, 97.5])
        result[name] = Interval(float(found[0]), float(low), float(high))
    return result


def mcnemar(first: int, second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from the samples that differ."""
    total = first + second
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        for k in range(min(first, second) + 1)
    ]
    return min(1.0, 2.0 * sum(math.exp(log - total * math.log(2.0)) for log in logs))


def _resampled(rows: np.ndarray, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return the K distinct rows, and how often each occurs in the data, then in each draw.

    The counts are int64 [1 + DRAWS, K].
    """
    cells, counts = np.unique(rows, axis=0, return_counts=True)
    total = int(counts.sum())
    drawn = np.random.RandomState(seed).multinomial(total, counts / total, DRAWS)
    return cells, np.concatenate([counts[None], drawn])


def _accuracy(labels: np.ndarray, predicted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return counts[:, labels == predicted].sum(1) / counts.sum(1)


def _macro_f1(labels: np.ndarray, predicted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean F1 over the classes that occur as a label or as a prediction."""
    total, present = np.zeros(len(counts)), np.zeros(len(counts))
    for name in np.union1d(labels, predicted):
        hits = counts[:, (labels == name) & (predicted == name)].sum(1)
        occurring = counts[:, labels == name].sum(1) + counts[:, predicted == name].sum(1)
        total += _ratio(2.0 * hits, occurring)
        present += occurring > 0
    return total / np.maximum(present, 1)


_SCORES = {"accuracy": _accuracy, "macro_f1": _macro_f1}


def interval(values: np.ndarray) -> Interval:
    """Return the data's value, which is the first, and percentiles of the draws' values."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return Interval(float(values[0]), float(low), float(high))


def calibration(confidence: np.ndarray, right: np.ndarray) -> Tuple[float, List[Dict[str, float]]]:
    """Return the expected calibration error, and the bins that it comes from.

    Args:
      confidence: probability of each predicted label, float [N].
      right: whether it is the label, bool [N].

    Returns:
      Mean distance between confidence and accuracy; ``confidence``, ``accuracy``, ``count`` of
      each of ten equal bins with a sample.
    """
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    bins = [
        {
            "confidence": float(confidence[place == i].mean()),
            "accuracy": float(right[place == i].mean()),
            "count": int((place == i).sum()),
        }
        for i in np.unique(place)
    ]
    gaps = [abs(each["confidence"] - each["accuracy"]) * each["count"] for each in bins]
    return sum(gaps) / max(len(right), 1), bins
