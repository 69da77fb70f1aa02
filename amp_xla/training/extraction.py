"""Entities or triples found in texts: evaluation, prediction, and scores of ``evaluate --file``.

Each entity or triple has a ``label``, and a method ``shown`` that returns it as text. Only
``predict`` imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from amp_xla.data.alignment import AlignedTexts
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.report import scores
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Infer, in_order, summed
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer

Found = List[List[Any]]  # what was found in each text
# Function (batch, outputs, aligned, names of the labels) -> what was found in each row.
Decode = Callable[[Batch, Mapping[str, Any], AlignedTexts, Sequence[str]], Found]
Unpack = Callable[[str], List[Any]]  # function from a text's label to its entities or triples


def counted(found: Found, gold: Found, names: Sequence[str]) -> np.ndarray:
    """Count correct, predicted and true entities or triples per label: int64 [labels, 3]."""
    row = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(names), 3), np.int64)
    for predicted, true in zip(map(set, found), map(set, gold)):
        for column, each in enumerate((predicted & true, predicted, true)):
            for one in each:
                counts[row[one.label], column] += 1
    return counts


def f1(counts: np.ndarray) -> Dict[str, float]:
    """Return F1, precision and recall (micro averages) for the counts that ``counted`` returned."""
    each = scores.of_counts(counts.sum(0, keepdims=True))
    return {name: float(each[name][0]) for name in ("f1", "precision", "recall")}


def evaluate(
    infer: Infer, data: Labelled, unpack: Unpack, decode: Decode, more: Any = None
) -> Dict[str, float]:
    """Return F1, precision, recall (micro averages) and the mean loss.

    Args:
      infer: function batch -> model outputs, with ``loss`` per text or summed over the batch.
      data: the dev texts; ``unpack`` reads their labels.
      decode: finds entities or triples in the model outputs.
      more: further metrics, as a function of batch, model outputs, and each row's predicted and
        true entities or triples. It returns name -> sum over the batch; ``evaluate`` adds the
        means to its result. None = no further metrics.
    """
    names, gold = data.labels.names, list(map(unpack, data.dev.labels or []))
    keys: List[str] = []

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        found = decode(batch, out, data.aligned, names)
        true = [gold[i] if i >= 0 else [] for i in batch["sample_ids"].tolist()]
        sums = more(batch, out, found, true) if more else {}
        keys[:] = sums
        weights = batch["weights"]
        loss = out["loss"] @ weights if np.ndim(out["loss"]) else out["loss"]
        return np.append(counted(found, true, names), [*sums.values(), loss, weights.sum()])

    sums = summed(infer, data.dev_batches, count)
    means = sums[3 * len(names) : -1] / max(sums[-1], 1.0)
    counts = sums[: 3 * len(names)].reshape(-1, 3)
    return {**f1(counts), **dict(zip([*keys, "loss"], means.tolist()))}


def predict(
    config: Any,
    checkpoint: Checkpoint,
    texts: Sequence[str],
    unit: str,
    build: Callable[[Any, int], Tuple[Any, Dict[str, Any]]],
    decode: Decode,
    fields: Callable[[List[Any]], Dict[str, Any]],
) -> Answers:
    """Return the entities or triples found in each text; each is a column of the text's answer.

    Args:
      unit: ``entities`` or ``triples``, for a warning.
      build: function (Keras model of the encoder, number of labels) -> model, outputs by name.
      fields: function from the entities or triples of a text to the answer's JSON fields.
    """
    from amp_xla.models import dropout, encoders
    from amp_xla.training.step import Inference, restore_weights

    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    names = Labels.load(checkpoint.file("labels.json")).names
    length, stride = config.batches.max_length, config.batches.stride
    aligned = AlignedTexts.of(texts, tokenizer, length, stride)
    if aligned.cut():
        note(
            f"warning: {aligned.cut():,} of {len(texts):,} texts have more than --max-length "
            f"{length} tokens; {unit} beyond that length are not found"
        )
    with dropout.inference():
        encoder = config.encoder.transformer(tokenizer.vocab_size, length, weights=False)
        model, outputs = build(encoder.model, len(names))
    restore_weights(checkpoint, model.weights)
    infer = Inference(encoders.named_inputs(model), outputs)
    found = in_order(
        aligned.encoded, length, config.batches.batch_size,
        lambda batch: decode(batch, infer(batch), aligned, names),
    )  # fmt: skip
    return Answers([
        ([output.printable(one.shown(text).replace("\t", " ")) for one in each], fields(each))
        for text, each in zip(texts, found)
    ])  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ExtractionScores(SampleScores):
    """Scores of entities or triples.

    ``gold`` are the true ones of each text, ``found`` the predicted ones; ``names`` are the labels'
    names. Errors are the wrong and the missed ones, in the order of the texts.
    """

    names: Sequence[str]
    gold: Found
    found: Found
    columns = ("sample", "label", "predicted", "text")
    metric, unit = "f1", "entities"

    @classmethod
    def scorer(
        cls, checkpoint: Checkpoint, samples: Samples, unpack: Unpack, read: Callable[[Any], Any]
    ) -> Scorer:
        """Check the labels of ``samples``; return the function that scores the answers.

        ``unpack`` reads entities or triples from a label; ``read`` reads them from an answer's JSON
        object.
        """
        names = Labels.load(checkpoint.file("labels.json")).names
        gold = list(map(unpack, samples.wanted))
        samples.check({one.label for text in gold for one in text}, names)
        return lambda answers: cls(samples, names, gold, list(map(read, answers)))

    def rows(self) -> np.ndarray:
        """Count correct, predicted and true entities or triples per text: int64 [texts, 3]."""
        pairs = zip(self.found, self.gold)
        return np.array([counted([found], [gold], self.names).sum(0) for found, gold in pairs])

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return f1(rows)

    def details(self) -> Dict[str, Any]:
        each = scores.of_counts(counted(self.found, self.gold, self.names))
        return {"unit": self.unit, "per_label": scores.rows(self.names, each)}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        errors: List[Dict[str, Any]] = []
        for i, text in enumerate(self.samples.texts):
            gold, found = set(self.gold[i]), set(self.found[i])
            for one in sorted(gold ^ found):
                sides = (one.shown(text), "")[:: 1 if one in gold else -1]
                errors.append(dict(zip(self.columns, (i + 1, *sides, text))))
            if len(errors) >= most:
                break
        return errors[:most]
