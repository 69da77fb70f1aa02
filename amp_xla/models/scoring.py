"""A masked language model that is examined: how likely was each hidden word?"""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.data.pretraining.yardstick import Question
from amp_xla.models import dropout
from amp_xla.models.language_model import LanguageModel

BATCH = 16


class Score(NamedTuple):
    """Means over words: ``loss`` in nats (of all pieces), ``accuracy`` (all pieces right)."""

    words: int
    loss: float
    accuracy: float


class Scorer:
    """A folder in Google's format, read and ready. One at a time: a new one ends the last.

    Args:
      folder: as ``--bert`` takes it.
      vocab_size: tokens of its vocabulary.
      length: most tokens of a question.

    Raises:
      AmpXlaError: a file is missing or damaged, or there is no masked language model's head.
    """

    def __init__(self, folder: str, vocab_size: int, length: int) -> None:
        K.clear_session()
        with dropout.inference():
            lm = LanguageModel(vocab_size, length, 1, 64, 1, bert=folder, dropout_rate=0.0)
        self._length = length
        names = ("positions", "labels", "weights")
        kinds = (tf.int32, tf.int32, tf.float32)
        inputs = {n: tf.placeholder(kind, [None, None], n) for n, kind in zip(names, kinds)}
        out = lm.head(inputs, lm.model.output)
        self._ask = backend.session().make_callable(
            [out["loss"], out["hits"]], [*lm.model.inputs, *inputs.values()]
        )

    def __call__(self, questions: Iterable[Question]) -> Score:
        """The score over all words that are asked for."""
        losses: List[float] = []
        right: List[bool] = []
        batch: List[Question] = []
        for question in questions:
            batch.append(question)
            if len(batch) == BATCH:
                self._add(batch, losses, right)
                batch = []
        if batch:
            self._add(batch, losses, right)
        return Score(len(losses), float(np.mean(losses)), float(np.mean(right)))

    def _add(self, batch: Sequence[Question], losses: List[float], right: List[bool]) -> None:
        most = max(len(question.labels) for question in batch)
        ids = np.zeros((len(batch), self._length), np.int32)
        positions, labels = np.zeros((2, len(batch), most), np.int32)
        weights = np.zeros((len(batch), most), np.float32)
        for row, question in enumerate(batch):
            ids[row, : len(question.token_ids)] = question.token_ids
            positions[row, : len(question.labels)] = question.positions
            labels[row, : len(question.labels)] = question.labels
            weights[row, : len(question.labels)] = 1.0
        asked: Any = self._ask(ids, np.zeros_like(ids), positions, labels, weights)
        nats, hits = (np.asarray(a, np.float64).reshape(weights.shape) for a in asked)
        for row, question in enumerate(batch):
            count = len(question.labels)
            losses += np.bincount(question.words, nats[row, :count]).tolist()
            pieces = np.bincount(question.words)
            right += (np.bincount(question.words, hits[row, :count]) == pieces).tolist()
