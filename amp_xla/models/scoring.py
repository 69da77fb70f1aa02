"""Loss and accuracy of a masked language model on cloze questions."""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K
from amp_xla.data.pretraining.cloze import Question
from amp_xla.models import dropout
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.options import bert_config

BATCH = 16


class Score(NamedTuple):
    """Means over words: ``loss``, the sum over pieces in nats; ``accuracy``: all pieces right."""

    words: int
    loss: float
    accuracy: float


class Scorer:
    """A model in Google's format; creating one clears the previous one.

    Args:
      folder: value of ``--bert``.
      vocab_size: tokens of its vocabulary.
      length: maximum tokens per question.

    Raises:
      AmpXlaError: a file is missing or damaged, or the head of the language model is missing.
    """

    def __init__(self, folder: str, vocab_size: int, length: int) -> None:
        K.clear_session()
        config = bert_config(vocab_size, 1, 64, 1, length, 0.0)  # its sizes are the folder's
        with dropout.inference():
            lm = LanguageModel(config, length, bert=folder)
        self._length = length
        inputs = lm.placeholders()
        out = lm.head(inputs, lm.model.output)
        self._run = backend.session().make_callable(
            [out["loss"], out["hits"]], list(inputs.values())
        )

    def __call__(self, questions: Iterable[Question]) -> Score:
        """Return the score over all masked words."""
        rows, losses = list(questions), []
        right: List[bool] = []
        for begin in range(0, len(rows), BATCH):
            batch = rows[begin : begin + BATCH]
            most = max(len(question.labels) for question in batch)
            ids = np.zeros((len(batch), self._length), np.int32)
            positions, labels = np.zeros((2, len(batch), most), np.int32)
            weights = np.zeros((len(batch), most), np.float32)
            for row, question in enumerate(batch):
                count = len(question.labels)
                ids[row, : len(question.token_ids)] = question.token_ids
                positions[row, :count], labels[row, :count] = question.positions, question.labels
                weights[row, :count] = 1.0
            outputs: Any = self._run(ids, np.zeros_like(ids), positions, labels, weights)
            nats, hits = (np.asarray(a, np.float64).reshape(weights.shape) for a in outputs)
            for row, question in enumerate(batch):
                words, count = question.words, len(question.labels)
                losses += np.bincount(words, nats[row, :count]).tolist()
                right += (np.bincount(words, hits[row, :count]) == np.bincount(words)).tolist()
        return Score(len(losses), float(np.mean(losses)), float(np.mean(right)))
