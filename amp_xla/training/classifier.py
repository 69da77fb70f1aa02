"""Configuration, data and predictions of the text classifiers in TensorFlow, Keras and JAX."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np

from amp_xla.data import labelled
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import in_order


class Answers(NamedTuple):
    """Predictions for texts or pairs.

    Attributes:
      labels: names of the labels; none if the model predicts scores alone.
      probabilities: probability of each label, float [texts, labels].
      separator: None = the most probable label is predicted; otherwise all labels above 0.5 are,
        joined by this text.
      scores: score of each pair, float [texts]; None = the predictions are labels alone.
    """

    labels: Tuple[str, ...]
    probabilities: np.ndarray
    separator: Optional[str] = None
    scores: Optional[np.ndarray] = None


ClassifierConfig = Any  # the configuration of a recipe that trains on labelled texts


class Questions:
    """Texts to classify with a checkpoint's vocabulary and labels; a tab separates pairs."""

    def __init__(self, config: ClassifierConfig, checkpoint: Checkpoint, lines: List[str]) -> None:
        self.tokenizer = Tokenizer.of_folder(str(checkpoint.path))
        self.labels = Labels.load(checkpoint.file("labels.json"))
        self._batch_size, self._length = config.batches.batch_size, config.batches.max_length
        self._separator: Optional[str] = config.files.separator
        self._encoded = labelled.questions(lines, self.tokenizer, self._length)

    def answers(
        self, chances: Callable[[Batch], np.ndarray], batch_size: Optional[int] = None
    ) -> Answers:
        """Return the probability of each label for each line.

        Args:
          chances: batch -> probability of each label, float [B, labels].
          batch_size: texts per batch; None = ``--batch-size`` of the run.
        """
        rows = in_order(self._encoded, self._length, batch_size or self._batch_size, chances)
        return Answers(self.labels.names, np.stack(rows), self._separator)
