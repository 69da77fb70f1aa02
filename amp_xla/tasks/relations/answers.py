"""Triples: evaluation on dev texts, the triples of new texts, and the model to export."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

from amp_xla.data.labelled import Labelled
from amp_xla.data.text.labels import Labels
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import Exportable
from amp_xla.export.text_models import encoder_of, pointer
from amp_xla.models.pointers import HEAD_SIZE
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.tasks.relations import model, scores
from amp_xla.tasks.relations.data import Triple, unpack
from amp_xla.training import extraction
from amp_xla.training.answers import Answers, Row
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, Infer


def evaluation(infer: Infer, batches: Any, data: Labelled) -> Evaluation:
    """Return F1 and so on, see ``extraction.evaluation``; print why F1 is 0."""
    note(f"scores begin near {model.BIAS:g}; those above 0 are predicted, so F1 begins at 0")
    gold = [unpack(label) for label in data.dev.labels or []]
    measure = extraction.evaluation(infer, batches, data, gold, scores.found_in, scores.state)

    def evaluate() -> Dict[str, float]:
        values = measure()
        if not values["f1"]:
            note(scores.explained(values))
        return {name: values[name] for name in ("f1", "precision", "recall", "loss")}

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

    def build(vocab_size: int, predicates: int) -> Tuple[Any, Dict[str, Any]]:
        length = config.batches.max_length
        encoder = config.encoder.transformer(vocab_size, length, weights=False).model
        linker = model.linker(encoder, predicates, 0.0)
        return linker, {"scores": linker.output}

    found = extraction.predict(config, checkpoint, texts, "names", build, scores.found_in)
    return TripleAnswers(found)


def exported(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the linker of a run, whose outputs are the scores of all planes."""
    names = Labels.load(checkpoint.file("labels.json")).names

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        linker = model.linker(encoder.model, len(names), 0.0)
        kernels: Dict[str, Any] = {}
        for name in model.POINTERS:
            kernels.update(pointer(linker.get_layer(name), f"{name.lower()}."))
        return Parts(encoder, {"scores": linker.output}, kernels, linker.weights)

    formula = f"bert4keras' EfficientGlobalPointer(heads, {HEAD_SIZE}) of the vectors: "
    formula += "entities (subject, object); heads and tails (RoPE=False), a head per predicate"
    return exportable(checkpoint, build, config.batches.max_length, names, formula=formula)
