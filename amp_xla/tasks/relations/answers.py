"""Triples: evaluation on dev texts, the triples of new texts, and the model to export."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import Exportable
from amp_xla.export.text_models import dense, encoder_of
from amp_xla.models import dropout
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.tasks.relations import model, scores
from amp_xla.tasks.relations.data import Placed, Triple, cells_of, gold_of
from amp_xla.training.answers import Answers, Row
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, Infer, in_order, summed
from amp_xla.training.step import Inference
from amp_xla.training.variables import restore_weights


def evaluation(infer: Infer, batches: Any, data: Labelled) -> Evaluation:
    """Return F1, precision, recall (micro averages) and mean loss; print why F1 is 0.

    Args:
      infer: outputs ``scores`` and ``loss`` of each text.
      batches: this rank's part of ``data.dev_batches``.
      data: texts and labels.
    """
    names, gold = data.labels.names, gold_of(data.dev)
    cells, _ = cells_of(gold, data.placed, names, "dev")

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        counts = np.zeros(3 + len(scores.STAGES))
        for i, planes in zip(batch["sample_ids"].tolist(), out["scores"]):
            if i >= 0:
                found = scores.triples(planes, data.placed, i, names)
                stage = scores.stage(planes, found, gold[i], cells[i])
                counts += [*scores.counted(found, gold[i])[:3], *stage]
        return np.append(counts, [out["loss"] @ batch["weights"], batch["weights"].sum()])

    def evaluate() -> Dict[str, float]:
        sums = summed(infer, batches, count)
        loss, weight = sums[-2:].tolist()
        if not sums[0]:
            note(scores.explained(dict(zip(scores.STAGES, sums[3:-2].tolist()))))
        return {**scores.f1(sums[:3]), "loss": loss / max(weight, 1.0)}

    return evaluate


@dataclasses.dataclass(frozen=True)
class TripleAnswers(Answers):
    """The triples of each text."""

    triples: List[List[Triple]]

    def rows(self, lines: Sequence[str]) -> List[Row]:
        """Return a column ``(subject, predicate, object)`` per triple."""
        return [
            ([output.printable(str(triple).replace("\t", " ")) for triple in triples],
             {"spo_list": [triple._asdict() for triple in triples]})
            for triples in self.triples
        ]  # fmt: skip

    def blank(self) -> Dict[str, Any]:
        return {"spo_list": None}


def predict(config: Any, checkpoint: Checkpoint, texts: Sequence[str]) -> TripleAnswers:
    """Return the triples of each text by a checkpoint of a run with ``config``."""
    tokenizer = Tokenizer.of_folder(str(checkpoint.path))
    names = Labels.load(checkpoint.file("labels.json")).names
    length = config.batches.max_length
    placed = Placed.of(texts, tokenizer, length)
    cut = sum(len(starts) > length - 2 for starts in placed.starts)
    if cut:
        note(
            f"warning: {cut:,} of {len(texts):,} texts have more than --max-length {length} "
            "tokens; names after them are not found"
        )
    with dropout.inference():
        encoder = config.encoder.transformer(tokenizer.vocab_size, length, weights=False)
        linker = model.linker(encoder.model, len(names), 0.0)
    restore_weights(checkpoint, linker.weights)
    infer = Inference(dict(zip(("token_ids", "segment_ids"), linker.inputs)), {"s": linker.output})

    def triples(batch: Batch) -> List[List[Triple]]:
        pairs = zip(batch["sample_ids"].tolist(), infer(batch)["s"])
        return [scores.triples(planes, placed, i, names) if i >= 0 else [] for i, planes in pairs]

    return TripleAnswers(in_order(placed.encoded, length, config.batches.batch_size, triples))


def exported(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the linker of a run, whose outputs are the scores of all planes."""
    names = Labels.load(checkpoint.file("labels.json")).names

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        linker = model.linker(encoder.model, len(names), 0.0)
        kernels: Dict[str, Any] = {}
        for name in model.POINTERS:
            for part in ("p_dense", "q_dense"):
                layer = getattr(linker.get_layer(name), part)
                kernels.update(dense(f"{name.lower()}.{part}", layer))
        return Parts(encoder, {"scores": linker.output}, kernels, linker.weights)

    formula = f"bert4keras' EfficientGlobalPointer(heads, {model.HEAD_SIZE}) of the vectors: "
    formula += "entities (subject, object); heads and tails (RoPE=False), a head per predicate"
    return exportable(checkpoint, build, config.batches.max_length, names, None, formula)
