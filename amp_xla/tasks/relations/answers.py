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
from amp_xla.tasks.relations.data import Placed, Triple, cells_of, unpack
from amp_xla.training.answers import Answers, Row
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, Infer, in_order, summed
from amp_xla.training.step import Inference
from amp_xla.training.variables import restore_weights


def evaluation(infer: Infer, batches: Any, data: Labelled) -> Evaluation:
    """Return F1, precision, recall (micro averages) and mean loss; print why F1 is 0.

    Args:
      infer: outputs ``scores``, and ``loss``: the sum over the batch.
      batches: this rank's part of ``data.dev_batches``.
      data: texts and labels.
    """
    names, gold = data.labels.names, [unpack(label) for label in data.dev.labels or []]
    cells, _ = cells_of(gold, data.placed, names, "dev")
    sizes = data.placed.encoded.lengths

    def count(batch: Batch, out: Mapping[str, Any]) -> Any:
        counts = np.zeros(3 + len(scores.STAGES))
        for sample, planes in zip(batch["sample_ids"].tolist(), out["scores"]):
            if sample >= 0:
                found, true = scores.triples_of(planes, data.placed, sample, names), gold[sample]
                stage = scores.stage(planes, int(sizes[sample]), found, true, cells[sample])
                counts += [*scores.counted(found, true)[:3], *stage]
        return np.append(counts, [out["loss"], batch["weights"].sum()])

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
            ([output.printable(triple.shown().replace("\t", " ")) for triple in triples],
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
        linker = config.linker(tokenizer.vocab_size, len(names), weights=False)
    restore_weights(checkpoint, linker.model.weights)
    inputs = dict(zip(("token_ids", "segment_ids"), linker.model.inputs))
    infer = Inference(inputs, {"scores": linker.model.output})

    def triples(batch: Batch) -> List[List[Triple]]:
        planes = infer(batch)["scores"]
        pairs = zip(batch["sample_ids"].tolist(), planes)
        return [scores.triples_of(p, placed, i, names) if i >= 0 else [] for i, p in pairs]

    return TripleAnswers(in_order(placed.encoded, length, config.batches.batch_size, triples))


def exported(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the linker of a run, whose outputs are the scores of all planes."""
    names = Labels.load(checkpoint.file("labels.json")).names

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        built = model.linker(encoder.model, len(names), 0.0).model
        layers = [(name, built.get_layer(name)) for name in model.POINTERS]
        kernels: Dict[str, Any] = {}
        for name, layer in layers:
            kernels.update(dense(f"{name.lower()}.p_dense", layer.p_dense))
            kernels.update(dense(f"{name.lower()}.q_dense", layer.q_dense))
        return Parts(encoder, {"scores": built.output}, kernels, built.weights)

    formula = (
        f"bert4keras' EfficientGlobalPointer(heads, {model.HEAD_SIZE}) of the vectors: entities "
        "(2 heads: subject, object), heads and tails (RoPE=False; a head per predicate)"
    )
    return exportable(checkpoint, build, config.batches.max_length, names, None, formula)
