"""What a run reports: metrics.jsonl, TensorBoard events, accuracy and macro-F1."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, Mapping

import numpy as np

from amp_xla.backend import tf


class MetricsLog:
    """Appends a JSON line and TensorBoard scalars for each logged step.

    Args:
      folder: the run folder; ``metrics.jsonl`` is appended to, never rewritten.
    """

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "metrics.jsonl", "a", encoding="utf-8", buffering=1)
        self._events = tf.summary.FileWriter(str(folder))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes ``values`` (numbers, or None for unknown) under ``step``."""
        record: Dict[str, Any] = {"step": step}
        summary = tf.Summary()
        for name, value in values.items():
            if isinstance(value, (float, np.floating)):
                # JSON has no NaN; a reader must not choke on the line that matters most.
                record[name] = float(value) if math.isfinite(value) else str(float(value))
            elif isinstance(value, np.integer):
                record[name] = int(value)
            else:
                record[name] = value
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                summary.value.add(tag=name, simple_value=float(value))
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._events.add_summary(summary, step)

    def close(self) -> None:
        """Flushes both files."""
        self._events.close()
        self._file.close()


def confusion(labels: Any, predictions: Any, classes: int) -> Any:
    """int64 [classes, classes]: row = label, column = prediction."""
    flat = np.asarray(labels, np.int64) * classes + np.asarray(predictions, np.int64)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def accuracy(matrix: Any) -> float:
    """Share of samples on the diagonal of a confusion matrix; NaN for an empty one."""
    total = matrix.sum()
    return float(np.trace(matrix) / total) if total else math.nan


def macro_f1(matrix: Any) -> float:
    """Mean of the per-class F1 over classes that occur as a label or as a prediction."""
    hits = np.diag(matrix).astype(np.float64)
    occurring = matrix.sum(0) + matrix.sum(1)
    present = occurring > 0
    if not present.any():
        return math.nan
    return float((2.0 * hits[present] / occurring[present]).mean())
