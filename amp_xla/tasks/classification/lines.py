"""Texts to classify, for the classifiers in TensorFlow, Keras and JAX. Imports no TensorFlow."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.training.answers import Answers, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import in_order
from amp_xla.training.vectors import encode_lines


class LinesToClassify:
    """Texts to classify with a checkpoint's vocabulary and labels; a tab separates pairs."""

    def __init__(self, config: Any, checkpoint: Checkpoint, lines: List[str]) -> None:
        self.tokenizer = Tokenizer.of_folder(str(checkpoint.path))
        self.labels = Labels.load(checkpoint.file("labels.json"))
        self._batch_size, self._length = config.batches.batch_size, config.batches.max_length
        self._lines, self._separator = lines, config.files.multilabel
        self._encoded = encode_lines(lines, self.tokenizer, self._length)

    def answers(
        self, probabilities: Callable[[Batch], np.ndarray], batch_size: Optional[int] = None
    ) -> Answers:
        """Return the probability of each label for each line.

        Args:
          probabilities: batch -> probability of each label, float [B, labels].
          batch_size: texts per batch; None = ``--batch-size`` of the run.
        """
        rows = in_order(self._encoded, self._length, batch_size or self._batch_size, probabilities)
        return label_answers(self._lines, self.labels.names, np.stack(rows), self._separator)
