"""Scores of pairs, for evaluation and for new texts."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.pairs import Method, Scale, apart
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import dropout, similarity
from amp_xla.models.options import EncoderOptions
from amp_xla.report.scores import spearman
from amp_xla.training import distributed, metrics
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.classifier import in_batches
from amp_xla.training.evaluation import shards
from amp_xla.training.step import Inference
from amp_xla.training.variables import restore_weights


class Threshold:
    """The lowest score at which two texts count as similar, chosen on the dev pairs.

    It is a variable, so that checkpoints hold it.
    """

    def __init__(self) -> None:
        self.variable = tf.get_variable(
            "threshold", (), tf.float32, trainable=False, initializer=tf.constant_initializer(0.5)
        )
        self._value = tf.placeholder(tf.float32, [])
        self._assign = self.variable.assign(self._value)

    @classmethod
    def of(cls, method: Method, scale: Scale) -> Optional[Threshold]:
        """Return a threshold of cosines for labels 0 and 1; None for others and probabilities."""
        return cls() if apart(method) and scale.binary else None

    def value(self) -> float:
        """Return the value in force."""
        return float(backend.session().run(self.variable))

    def set(self, value: float) -> None:
        """Assign the variable."""
        backend.session().run(self._assign, {self._value: value})


class Similarity:
    """Spearman's correlation, and of 0 and 1 the accuracy, over all pairs of ``batches``.

    Args:
      inference: output ``scores`` [B].
      batches: not shuffled.
      labels: labels of the pairs in order, float32 [N].
      binary: labels are 0 and 1.
      threshold: set to the one with the highest accuracy; None = 0.5.
    """

    def __init__(
        self,
        inference: Inference,
        batches: Any,
        labels: np.ndarray,
        binary: bool,
        threshold: Optional[Threshold],
    ) -> None:
        self._inference, self._batches = inference, batches
        self._labels, self._binary, self._threshold = labels, binary, threshold

    def __call__(self) -> Dict[str, float]:
        # A sample is one rank's; the others add nothing.
        scores = np.zeros(len(self._labels), np.float64)
        for batch in shards(self._batches):
            real = batch["weights"] > 0
            scores[batch["sample_ids"][real]] = self._inference(batch)["scores"][real]
        scores = distributed.current().total(scores)
        result = {"spearman": spearman(self._labels, scores)}
        if not self._binary:
            return result
        alike = self._labels > 0.5
        if self._threshold is None:
            return {**result, "accuracy": float(np.mean((scores >= 0.5) == alike))}
        threshold, accuracy = metrics.best_threshold(alike, scores)
        self._threshold.set(threshold)
        return {**result, "accuracy": accuracy, "threshold": threshold}


class Scores(NamedTuple):
    """Predictions for pairs.

    Attributes:
      values: score of each pair, float64 [N]: the cosine, or a cross-encoder's label.
      probabilities: that the label is 1, float64 [N]: half at the threshold, elsewhere by the scale
        of the losses; None if labels are not 0 and 1.
    """

    values: np.ndarray
    probabilities: Optional[np.ndarray]

    def rows(self) -> Iterator[Tuple[List[str], Dict[str, Any]]]:
        """Yield what ``amp-xla predict`` prints of each pair: as columns, and as JSON."""
        for i, value in enumerate(self.values):
            score = float(f"{value:.7g}")
            if self.probabilities is None:
                yield [f"{score:.4f}"], {"score": score}
                continue
            one = float(f"{self.probabilities[i]:.7g}")
            chances = {"0": float(f"{1.0 - one:.7g}"), "1": one}
            label = "1" if one >= 0.5 else "0"
            record = {"label": label, "score": score, "probability": chances[label]}
            yield [label, f"{score:.4f}"], {**record, "probabilities": chances}


class Scorer:
    """The scores of pairs by a checkpoint.

    Args:
      checkpoint: checkpoint of a run.
      method, encoder: fields of its configuration.
      length: tokens of a row, longer texts are cut.
      batch_size: rows of a batch.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        method: Method,
        encoder: EncoderOptions,
        length: int,
        batch_size: int,
    ) -> None:
        self._tokenizer = Tokenizer.from_assets(checkpoint.file)
        self._scale = Scale.load(checkpoint.file("labels.json"))
        self._method, self._length, self._batch_size = method, length, batch_size
        vocab_size = self._tokenizer.vocab_size
        with dropout.inference():
            self._model = similarity.network(method, encoder, vocab_size, length, weights=False)
        threshold = Threshold.of(method, self._scale)
        variables = [] if threshold is None else [threshold.variable]
        restore_weights(checkpoint, [*self._model.weights, *variables])
        self._threshold = None if threshold is None else threshold.value()

    def __call__(self, texts: List[str], others: List[str]) -> Scores:
        """Return the scores of pairs, which do not depend on other pairs."""
        if apart(self._method):
            different = list(dict.fromkeys([*texts, *others]))
            rows = vectors(self._model, self._tokenizer, different, self._length, self._batch_size)
            place = {text: i for i, text in enumerate(different)}
            first, second = (rows[[place[text] for text in side]] for side in (texts, others))
            values = (first * second).sum(1, dtype=np.float64)
            if not self._scale.binary:
                return Scores(values, None)
            excess = similarity.SCALE * (values - (self._threshold or 0.0))
            return Scores(values, 1.0 / (1.0 + np.exp(-excess)))
        inputs = similarity.placeholders(self._method)
        names = ("token_ids", "segment_ids")
        with dropout.inference():
            output = self._model(similarity.model_inputs(self._method, inputs))
        scores = similarity.scores(self._method, output)
        infer = Inference({name: inputs[name] for name in names}, {"scores": scores})
        encoded = self._tokenizer.encode(texts, others, self._length)
        values = in_batches(
            encoded, self._length, self._batch_size, lambda batch: infer(batch)["scores"]
        ).astype(np.float64)
        scale = self._scale
        labels = scale.low + values * (scale.high - scale.low)
        return Scores(labels, values if scale.binary else None)


def vectors(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], length: int, batch_size: int
) -> np.ndarray:
    """Return the vectors of texts, float32 [N, hidden], each of length 1.

    Args:
      model: from ``similarity.network``.
      tokenizer: tokenizer of the model.
      length: tokens of a text, longer ones are cut.
      batch_size: rows of a batch.
    """
    token_ids = tf.placeholder(tf.int32, [None, None])
    with dropout.inference():
        output = similarity.unit(model([token_ids, tf.zeros_like(token_ids)]))
    infer = Inference({"token_ids": token_ids}, {"vectors": output})
    encoded = tokenizer.encode(texts, max_length=length)
    return in_batches(encoded, length, batch_size, lambda batch: infer(batch)["vectors"])
