"""Entities: evaluation on dev texts, and the entities of new texts."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.models import dropout
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.tasks.tagging import model, spans
from amp_xla.tasks.tagging.data import Placed
from amp_xla.training.answers import Answers, Row
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, Infer, in_order, summed
from amp_xla.training.step import Inference
from amp_xla.training.variables import restore_weights


def evaluation(infer: Infer, batches: Any, data: Labelled, head: str) -> Evaluation:
    """Return entity F1, precision, recall (micro averages) and mean loss.

    Args:
      infer: outputs of ``Tagger.outputs``, and ``loss``: the sum over the batch.
      batches: this rank's part of ``data.dev_batches``.
      data: texts and labels.
      head: name of the model's head.
    """
    names, gold = data.labels.names, [unpack(label) for label in data.dev.labels or []]

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        answers, true = [], []
        for sample, row in zip(batch["sample_ids"], spans.decode(head, out, batch["token_ids"])):
            if sample >= 0:
                answers.append(data.placed.entities(sample, row, names))
                true.append(gold[sample])
        counts = spans.counted(answers, true, names)
        return np.append(counts, [out["loss"], batch["weights"].sum()])

    def evaluate() -> Dict[str, float]:
        sums = summed(infer, batches, count)
        loss, weight = sums[-2:].tolist()
        return {**spans.f1(sums[:-2].reshape(-1, 3)), "loss": loss / max(weight, 1.0)}

    return evaluate


@dataclasses.dataclass(frozen=True)
class EntityAnswers(Answers):
    """The entities of each text."""

    entities: List[List[Entity]]

    def rows(self, lines: Sequence[str]) -> List[Row]:
        """Return a column ``start:end label words`` per entity."""
        return [
            ([output.printable(e.shown(line).replace("\t", " ")) for e in entities],
             {"entities": entities})
            for entities, line in zip(self.entities, lines)
        ]  # fmt: skip


def predict(config: Any, checkpoint: Checkpoint, texts: Sequence[str]) -> EntityAnswers:
    """Return the entities of each text by a checkpoint of a run with ``config``."""
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    names = Labels.load(checkpoint.file("labels.json")).names
    length = config.batches.max_length
    placed = Placed.of(texts, tokenizer, length)
    cut = sum(len(starts) > length - 2 for starts in placed.starts)
    if cut:
        note(
            f"warning: {cut:,} of {len(texts):,} texts have more than --max-length {length} "
            "tokens; entities after them are not found"
        )
    with dropout.inference():
        tagger = model.of_config(config, tokenizer.vocab_size, len(names), weights=False)
    restore_weights(checkpoint, tagger.model.weights)
    inputs = dict(zip(("token_ids", "segment_ids"), tagger.model.inputs))
    infer = Inference(inputs, tagger.outputs(tagger.model.output))
    rows = in_order(
        placed.encoded, length, config.batches.batch_size,
        lambda batch: spans.decode(config.head, infer(batch), batch["token_ids"]),
    )  # fmt: skip
    return EntityAnswers([placed.entities(text, row, names) for text, row in enumerate(rows)])
