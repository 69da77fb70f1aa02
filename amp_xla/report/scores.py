"""Scores of predictions on labelled samples, for training and ``amp-xla evaluate --file``."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

DRAWS = 2000
_BINS = 10


def bootstrap(
    samples: np.ndarray, score: Callable[[np.ndarray], Dict[str, float]], seed: int
) -> Dict[str, Dict[str, float]]:
    """Return score name -> ``value`` on all samples, and ``low``, ``high`` of its 95% interval.

    ``samples``, [N, K], has a row per sample. ``score`` returns scores by name for such rows.
    """
    source, total = np.random.RandomState(seed), len(samples)
    drawn = [score(samples[source.randint(total, size=total)]) for _ in range(DRAWS)]
    result = {}
    for name, value in score(samples).items():
        numbers = [scores[name] for scores in drawn if not math.isnan(scores[name])]
        low, high = np.percentile(numbers or [math.nan], [2.5, 97.5])
        result[name] = {"value": float(value), "low": float(low), "high": float(high)}
    return result


def confusion(labels: Any, predictions: Any, classes: int) -> Any:
    """Return the confusion matrix, int64 [classes, classes]: row = label, column = prediction."""
    flat = np.asarray(labels, np.int64) * classes + np.asarray(predictions, np.int64)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def classification(matrix: Any) -> Dict[str, float]:
    """Return accuracy and macro-F1 of a confusion matrix.

    Macro-F1 is the mean over the classes that occur as a label or as a prediction.
    """
    present = matrix.sum(0) + matrix.sum(1) > 0
    return {
        "accuracy": float(np.diag(matrix).sum() / matrix.sum()),
        "macro_f1": float(per_label(matrix)["f1"][present].mean()),
    }


def per_label(confusion: np.ndarray) -> Dict[str, np.ndarray]:
    """Return precision, recall and F1, float64 [classes], and support, int64 [classes].

    Rows of ``confusion`` are labels, columns predictions. A ratio with the denominator 0 is 0.
    """
    return of_counts(np.stack([np.diag(confusion), confusion.sum(0), confusion.sum(1)], 1))


def of_counts(counts: np.ndarray) -> Dict[str, np.ndarray]:
    """Return precision, recall, F1 and support of each label, as ``per_label`` does.

    A row of ``counts``, int64 [labels, 3], has the numbers of correct, predicted and true samples.
    """
    right, found, support = counts.T
    return {
        "precision": _ratio(right, found),
        "recall": _ratio(right, support),
        "f1": _ratio(2 * right, found + support),
        "support": support,
    }


def rows(names: Sequence[str], each: Mapping[str, np.ndarray]) -> List[Dict[str, Any]]:
    """Return one dictionary per label from the result of ``per_label`` or ``of_counts``."""
    return [
        {"label": name, **{key: values[i].item() for key, values in each.items()}}
        for i, name in enumerate(names)
    ]


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.where(below > 0, above / np.maximum(below, 1), 0.0)


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, from 1, float64 [N]; equal values share their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    each: np.ndarray = np.cumsum(count) - (count - 1) / 2.0
    return each[place.reshape(-1)]


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation of two columns, float [N]; NaN if one is constant."""
    first, second = (
        np.asarray(x, np.float64) - np.mean(x, dtype=np.float64) for x in (first, second)
    )
    norm = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / norm if norm else math.nan


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation of two columns, float [N]; NaN if one is constant."""
    return pearson(ranks(first), ranks(second))


def correlations(labels: np.ndarray, values: np.ndarray) -> Dict[str, float]:
    """Return Spearman's and Pearson's correlation of labels and predicted numbers, float [N]."""
    return {"spearman": spearman(labels, values), "pearson": pearson(labels, values)}


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve.

    This is the share of (positive, negative) pairs whose positive has the higher score; ties count
    half. It is 0.5 if all labels are equal. Labels are bool [N], scores finite floats [N].
    """
    rank = ranks(scores)
    positive = int(labels.sum())
    pairs = positive * (len(labels) - positive)
    if not pairs:
        return 0.5
    return float((rank[labels].sum() - positive * (positive + 1) / 2.0) / pairs)


def best_threshold(labels: np.ndarray, scores: np.ndarray) -> Tuple[float, float]:
    """Return the threshold with the highest accuracy, and that accuracy.

    Scores >= threshold are positive. The threshold is the middle between two scores, 0.5 above the
    highest score, or 0.5 below the lowest. Labels are bool [N], scores finite floats [N].
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], labels[order]
    # right[k]: correct predictions if the k highest scores are positive.
    right = np.concatenate([[0], np.cumsum(hits)]) + (~hits).sum()
    right = right - np.concatenate([[0], np.cumsum(~hits)])
    edges = np.concatenate([ranked[:1] + 1.0, ranked, ranked[-1:] - 1.0])
    right = np.where(edges[:-1] > edges[1:], right, -1)  # no threshold separates equal scores
    best = int(right.argmax())
    return float(edges[best] + edges[best + 1]) / 2.0, float(right[best]) / len(scores)


def mcnemar(first: int, second: int) -> float:
    """Return McNemar's exact two-sided p-value for two runs.

    ``first`` is the number of samples that only the first run gets right, ``second`` the number
    that only the second run gets right.
    """
    total = first + second
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        for k in range(min(first, second) + 1)
    ]
    return min(1.0, 2.0 * sum(math.exp(log - total * math.log(2.0)) for log in logs))


def calibration(confidence: np.ndarray, right: np.ndarray) -> Tuple[float, List[Dict[str, float]]]:
    """Return the expected calibration error, and the bins from which it is computed.

    ``confidence``: the predicted labels' probabilities, float [N]; ``right``: bool [N].
    Confidences, 0 to 1, fall into ten equal bins; empty bins are not returned. The error is the
    mean distance between a bin's mean confidence and its accuracy, weighted by its samples.
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
