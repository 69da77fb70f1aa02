"""Triples: evaluation, prediction, scores, export; an explanation if F1 is 0.

TensorFlow is imported in functions only.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.alignment import AlignedTexts
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.labels import Labels
from amp_xla.export.model import Exportable
from amp_xla.process.progress import note
from amp_xla.tasks.relations.data import Triple, unpack
from amp_xla.training import extraction
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Evaluation, Infer
from amp_xla.training.extraction import ExtractionScores, Found, f1
from amp_xla.training.sample_scores import Samples, Scorer

MOST = 100  # maximum subjects, and objects, of a text: an untrained model may find thousands


def evaluation(infer: Infer, data: Labelled) -> Evaluation:
    """Return a function that evaluates F1 on dev texts; if F1 is 0, it also prints the reason."""
    from amp_xla.tasks.relations.model import BIAS

    note(f"scores start near {BIAS:g}; only scores above 0 are predictions, so F1 starts at 0")

    def evaluate() -> Dict[str, float]:
        values = extraction.evaluate(infer, data, unpack, found_in, state)
        if not values["f1"]:
            note(explained(values))
        return {name: values[name] for name in ("f1", "precision", "recall", "loss")}

    return evaluate


def predict(config: Any, checkpoint: Checkpoint, texts: Sequence[str]) -> Answers:
    """Return, for each text, a column ``(subject, predicate, object)`` per triple."""
    from amp_xla.tasks.relations import model

    def build(encoder: Any, predicates: int) -> Tuple[Any, Dict[str, Any]]:
        linker = model.linker(encoder, predicates, 0.0)
        return linker, {"scores": linker.output}

    answers = extraction.predict(
        config, checkpoint, texts, "names", build, found_in,
        lambda triples: {"spo_list": [triple._asdict() for triple in triples]},
    )  # fmt: skip
    return answers._replace(blank={"spo_list": None})


def exportable(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model to export; it outputs all score matrices: the planes of ``cells_of``."""
    from amp_xla.export import graph, text_models
    from amp_xla.models.encoders import POINTER_SIZE
    from amp_xla.tasks.relations import model

    names = Labels.load(checkpoint.file("labels.json")).names

    def build(folder: Optional[str]) -> graph.Parts:
        encoder = text_models.encoder_of(config, checkpoint, folder)
        linker = model.linker(encoder.model, len(names), 0.0)
        kernels: Dict[str, Any] = {}
        for name in model.POINTERS:
            kernels.update(text_models.pointer(linker.get_layer(name), f"{name.lower()}."))
        return graph.Parts(encoder, {"scores": linker.output}, kernels, linker.weights)

    formula = f"bert4keras' EfficientGlobalPointer(heads, {POINTER_SIZE}) of the vectors: "
    formula += "entities (subject, object); heads and tails (RoPE=False), a head per predicate"
    return graph.exportable(checkpoint, build, config.batches.max_length, names, formula=formula)


def decode(planes: np.ndarray, length: int) -> List[Tuple[int, ...]]:
    """Return each triple: predicate, first and last token of subject, first and last of object.

    ``planes`` are scores [planes, L, L], see ``data.cells_of``. No subject or object contains [CLS]
    or [SEP].
    """
    inner = planes[:, 1 : length - 1, 1 : length - 1]
    cells = [np.argwhere(np.triu(plane > 0)) for plane in inner[:2]]
    subjects, objects = (
        each[np.argsort(-plane[tuple(each.T)], kind="stable")[:MOST]]
        for each, plane in zip(cells, inner)
    )
    heads, tails = (
        part[:, subjects[:, end, None], objects[:, end]] > 0
        for end, part in enumerate(np.split(inner[2:], 2))
    )
    return [
        (p, *(int(place) + 1 for place in (*subjects[i], *objects[j])))
        for p, i, j in np.argwhere(heads & tails).tolist()
    ]


def found_in(
    batch: Batch, out: Mapping[str, Any], aligned: AlignedTexts, names: Sequence[str]
) -> Found:
    """Return the triples of each row, without duplicates; see ``extraction.Decode``."""
    triples: Found = [[] for _ in batch["sample_ids"]]
    for row, text in enumerate(batch["sample_ids"].tolist()):
        found = decode(out["scores"][row], aligned.encoded.lengths[text]) if text >= 0 else []
        triples[row] = sorted({
            Triple(aligned.words(text, sh, st), names[p], aligned.words(text, oh, ot))
            for p, sh, st, oh, ot in found
        })  # fmt: skip
    return triples


def state(batch: Batch, out: Mapping[str, Any], found: Found, gold: Found) -> Dict[str, float]:
    """Return numbers that explain an F1 of 0, summed over the texts of a batch."""
    planes = out["scores"][batch["sample_ids"] >= 0]
    pairs = [{t[::2] for t in some} & {t[::2] for t in true} for some, true in zip(found, gold)]
    best = planes.max((2, 3))
    return {
        "best_name": best[:, :2].max(1).sum(), "best_link": best[:, 2:].max(1).sum(),
        "names": np.triu(planes[:, :2] > 0).sum(), "triples": sum(map(len, found)),
        "pairs": sum(map(len, pairs)),
    }  # fmt: skip


def explained(mean: Mapping[str, float]) -> str:
    """Return why F1 is 0, and what to try, from the means of ``state``."""
    why, advice = f"{mean['names']:.2g} subjects and objects per text", "more --epochs"
    if not mean["names"]:
        why = "no score of a subject or object is above 0; the best of a text is "
        why += f"{mean['best_name']:.1f} on average"
        advice += ", then a higher --learning-rate"
    elif not mean["triples"]:
        why += ", but no predicate links them; the best score of a link is "
        why += f"{mean['best_link']:.1f} on average"
    else:
        why += f" and {mean['triples']:.2g} triples; {mean['pairs']:.2g} have the right subject "
        why += "and object with a wrong predicate"
        advice += "; a lower --learning-rate if the loss rises"
    return f"F1 is 0: {why}. Try {advice}"


class TripleScores(ExtractionScores):
    """Scores of triples, including partial matches."""

    unit = "triples"

    def rows(self) -> np.ndarray:
        """Add two columns: how many predicted triples touch a true one, and vice versa."""
        partial = [
            [sum(any(map(one.touches, b)) for one in set(a)) for a, b in ((f, g), (g, f))]
            for f, g in zip(self.found, self.gold)
        ]
        return np.append(super().rows(), partial, 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        _, found, gold, *matched = rows.sum(0)
        precision, recall = np.array(matched) / np.maximum([found, gold], 1)
        partial = 2.0 * precision * recall / max(precision + recall, 1e-9)
        return {**f1(rows[:, :3]), "partial_f1": float(partial)}


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the predicates of ``samples``; return a function that computes scores of answers."""
    return TripleScores.scorer(
        checkpoint, samples, unpack, lambda answer: [Triple(**each) for each in answer["spo_list"]]
    )
