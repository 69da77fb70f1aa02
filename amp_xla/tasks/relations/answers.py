"""Triples: evaluation on dev texts, and the triples of new texts."""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

from amp_xla.data.labelled import Labelled
from amp_xla.process.progress import note
from amp_xla.tasks.relations import model, scores
from amp_xla.tasks.relations.data import unpack
from amp_xla.training import extraction
from amp_xla.training.answers import Answers
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


def predict(config: Any, checkpoint: Checkpoint, texts: Sequence[str]) -> Answers:
    """Return a column ``(subject, predicate, object)`` per triple of each text."""

    def build(vocab_size: int, predicates: int) -> Tuple[Any, Dict[str, Any]]:
        length = config.batches.max_length
        encoder = config.encoder.transformer(vocab_size, length, weights=False).model
        linker = model.linker(encoder, predicates, 0.0)
        return linker, {"scores": linker.output}

    found = extraction.predict(config, checkpoint, texts, "names", build, scores.found_in)
    answers = extraction.answers(
        texts, found, lambda triples: {"spo_list": [triple._asdict() for triple in triples]}
    )
    return answers._replace(blank={"spo_list": None})
