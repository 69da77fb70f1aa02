"""Evaluations: run an inference over held-out batches and name what came out."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from amp_xla.training import metrics
from amp_xla.training.step import Inference


class Classification:
    """Accuracy, macro-F1 and mean loss over all batches of ``batches``.

    Args:
      inference: outputs ``logits`` [B, classes] and ``loss`` [B].
      batches: ``Batches`` without shuffling.
      classes: number of labels.
    """

    def __init__(self, inference: Inference, batches: Any, classes: int) -> None:
        self._inference, self._batches, self._classes = inference, batches, classes

    def __call__(self) -> Dict[str, float]:
        matrix = np.zeros((self._classes, self._classes), np.int64)
        loss = weight = 0.0
        for batch in self._batches.epoch(0):
            out = self._inference(batch._asdict() if hasattr(batch, "_asdict") else vars(batch))
            real = batch.weights > 0
            matrix += metrics.confusion(
                batch.labels[real], out["logits"].argmax(-1)[real], self._classes
            )
            loss += float(out["loss"][real].sum())
            weight += float(real.sum())
        return {
            "accuracy": metrics.accuracy(matrix),
            "macro_f1": metrics.macro_f1(matrix),
            "loss": loss / max(weight, 1.0),
        }
