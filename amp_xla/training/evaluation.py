"""Evaluations: run inference over held-out batches and return metrics by name."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, Optional

import numpy as np

from amp_xla.data import spans
from amp_xla.data.batches.rank_shard import micro_batches
from amp_xla.data.tagged import Wanted
from amp_xla.models import dropout
from amp_xla.models.language_model import LanguageModel
from amp_xla.training import distributed, metrics
from amp_xla.training.step import Inference

_AGREE_EVERY = 16  # batches between two checks among ranks whether to stop


def shards(batches: Any) -> Iterator[Any]:
    """Yield the part of ``batches`` that this rank evaluates."""
    for number, batch in enumerate(batches.epoch(0)):
        if number % _AGREE_EVERY == 0:
            distributed.current().ask()
        yield from micro_batches(batch)


def _total(*values: float) -> Any:
    """Return the sum of each value over the ranks."""
    return distributed.current().total(np.array(values, np.float64)).tolist()


class Classification:
    """Accuracy, macro-F1 and mean loss over all batches of ``batches``.

    Args:
      inference: outputs ``logits`` [B, classes] and ``loss`` [B]; packed rows have [B, S, ...].
      batches: ``Batches`` without shuffling.
      classes: number of labels.
    """

    def __init__(self, inference: Inference, batches: Any, classes: int) -> None:
        self._inference, self._batches, self._classes = inference, batches, classes

    def __call__(self) -> Dict[str, float]:
        matrix = np.zeros((self._classes, self._classes), np.int64)
        loss = weight = 0.0
        for batch in shards(self._batches):
            out = self._inference(batch)
            real = batch["weights"] > 0
            matrix += metrics.confusion(
                batch["labels"][real], out["logits"].argmax(-1)[real], self._classes
            )
            loss += float(out["loss"][real].sum())
            weight += float(real.sum())
        matrix = distributed.current().total(matrix)
        return metrics.classification(matrix, *_total(loss, weight))


class Tagging:
    """Entity F1, precision, recall (micro averages) and mean loss over all texts of ``batches``.

    Args:
      inference: outputs of ``Tagger.outputs``, and ``loss``: the sum over the batch.
      batches: batches of texts with labels, without shuffling.
      wanted: entities of the texts.
      head: see ``spans.decode``.
    """

    def __init__(self, inference: Inference, batches: Any, wanted: Wanted, head: str) -> None:
        self._inference, self._batches = inference, batches
        self._wanted, self._head = wanted, head

    def __call__(self) -> Dict[str, float]:
        counts = np.zeros((len(self._wanted.missed), 3), np.int64)
        loss = weight = 0.0
        for batch in shards(self._batches):
            out = self._inference(batch)
            answers = spans.decode(self._head, out, batch["token_ids"])
            real = batch["sample_ids"] >= 0
            counts += spans.counted(
                [answer for answer, keep in zip(answers, real) if keep],
                [self._wanted.spans[sample] for sample in batch["sample_ids"][real]], len(counts),
            )  # fmt: skip
            loss += float(out["loss"])
            weight += float(batch["weights"].sum())
        counts = distributed.current().total(counts)
        counts[:, 2] += self._wanted.missed
        loss, weight = _total(loss, weight)
        return {**spans.f1(counts), "loss": loss / max(weight, 1.0)}


class SeveralLabels:
    """Micro-F1, share of texts with all labels right, and mean loss; arguments as above."""

    def __init__(self, inference: Inference, batches: Any, classes: int) -> None:
        self._inference, self._batches = inference, batches

    def __call__(self) -> Dict[str, float]:
        sums = np.zeros(6)
        for batch in shards(self._batches):
            out = self._inference(batch)
            real = batch["weights"] > 0
            labels, answers = batch["labels"][real] > 0, out["logits"][real] > 0
            right = (labels == answers).all(-1)
            parts = (labels & answers, labels, answers, right, out["loss"][real], real)
            sums += [float(part.sum()) for part in parts]
        both, present, predicted, right, loss, count = _total(*sums)
        return {
            "micro_f1": 2.0 * both / max(present + predicted, 1.0),
            "accuracy": right / max(count, 1.0),
            "loss": loss / max(count, 1.0),
        }


class Ranking:
    """AUC, accuracy and mean loss of a click model over all samples of ``batches``.

    Args:
      inference: outputs ``logits`` and ``loss``, both [B].
      batches: ``SlotBatches`` without shuffling.
      samples: how many there are.
    """

    def __init__(self, inference: Inference, batches: Any, samples: int) -> None:
        self._inference, self._batches, self._samples = inference, batches, samples

    def __call__(self) -> Dict[str, float]:
        # A sample is one rank's; the others add nothing.
        values_of = np.zeros((3, self._samples), np.float64)
        for batch in shards(self._batches):
            out = self._inference(batch)
            real = batch["weights"] > 0
            values = (out["logits"], out["loss"], batch["labels"])
            values_of[:, batch["sample_ids"][real]] = np.stack([v[real] for v in values])
        logits, loss, labels = distributed.current().total(values_of)
        return {
            "auc": metrics.auc(labels > 0.5, logits),
            "accuracy": float(np.mean((logits > 0) == (labels > 0.5))),
            "loss": float(loss.mean()),
        }


class HeldOut:
    """Loss, perplexity and accuracy of a language model over held-out sequences.

    Args:
      language_model: the model.
      inputs: the step's placeholders.
      stream: batches in fixed order with fixed masks.
      shorter: the same text in shorter sequences; also reports their loss, as ``loss_`` and length.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        inputs: Dict[str, Any],
        stream: Any,
        shorter: Optional[Any] = None,
    ) -> None:
        with dropout.inference():
            vectors = language_model.model(language_model.model.inputs)
        self._inference = Inference(inputs, language_model.head(inputs, vectors))
        self._batches, self._shorter = stream, shorter

    def __call__(self) -> Dict[str, float]:
        metrics_by_name = self._over(self._batches)
        if self._shorter is not None:
            metrics_by_name[f"loss_{self._shorter.shapes[0][1]}"] = self._over(self._shorter)[
                "loss"
            ]
        return metrics_by_name

    def _over(self, stream: Any) -> Dict[str, float]:
        loss = hits = count = 0.0
        for batch in shards(stream):
            out = self._inference(batch)
            loss += float(out["loss"].sum())
            hits += float(out["hits"].sum())
            count += float(batch["weights"].sum())
        loss, hits, count = _total(loss, hits, count)
        mean = loss / max(count, 1.0)
        return {
            "loss": mean,
            "perplexity": math.exp(min(mean, 50.0)),
            "accuracy": hits / max(count, 1.0),
        }
