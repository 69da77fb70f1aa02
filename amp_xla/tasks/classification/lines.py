"""Texts to classify, for the classifiers in TensorFlow and JAX. Imports no TensorFlow."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.training.answers import Answers, label_answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import in_order


def encode_lines(lines: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Return the tokens of lines to predict; a line is a text, or two texts separated by a tab.

    The tokens of a line do not depend on other lines.
    """
    split = [line.partition("\t") for line in lines]
    pairs = [second if tab else None for _, tab, second in split]
    return tokenizer.encode([first for first, _, _ in split], pairs, max_length)


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
