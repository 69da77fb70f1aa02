"""Triples from scores; precision, recall and F1; why F1 is 0. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from amp_xla.data.text.labels import Labels
from amp_xla.report import scores
from amp_xla.tasks.relations.data import Cell, Placed, Triple
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer

MOST = 100  # subjects and objects of a text, the best ones: an untrained model may find thousands


def _spans(plane: np.ndarray) -> np.ndarray:
    """Return first and last token of the best positive scores [L, L] from the diagonal on."""
    cells = np.argwhere(np.triu(plane > 0))
    best = np.argsort(-plane[tuple(cells.T)], kind="stable")[:MOST]
    return np.array(cells[np.sort(best)])


def decode(planes: np.ndarray, length: int) -> List[Tuple[int, ...]]:
    """Return (predicate, subject's first and last token, object's) of each triple of a text.

    Args:
      planes: scores, float [2 + 2 * predicates, L, L]; see ``data.cells_of``.
      length: number of tokens; [CLS] and [SEP] are never part of a name.
    """
    inner = planes[:, 1 : length - 1, 1 : length - 1]
    subjects, objects = _spans(inner[0]), _spans(inner[1])
    heads, tails = (
        part[:, subjects[:, end, None], objects[:, end]] > 0
        for end, part in enumerate(np.split(inner[2:], 2))
    )
    return [
        (p, *(int(place) + 1 for place in (*subjects[i], *objects[j])))
        for p, i, j in np.argwhere(heads & tails).tolist()
    ]


def triples(planes: np.ndarray, placed: Placed, text: int, names: Sequence[str]) -> List[Triple]:
    """Return the triples of a text, without duplicates, by its scores."""
    found = decode(planes, int(placed.encoded.lengths[text]))
    return sorted({
        Triple(placed.words(text, sh, st), names[p], placed.words(text, oh, ot))
        for p, sh, st, oh, ot in found
    })  # fmt: skip


def counted(found: Sequence[Triple], gold: Sequence[Triple]) -> List[int]:
    """Count correct, predicted and true triples of a text; then those that match in part.

    In part: predicted ones with a true one that has the same predicate, and a subject and an object
    of which one contains the other; and the reverse.
    """
    first, second = set(found), set(gold)

    def in_part(some: Any, others: Any) -> int:
        return sum(any(one.touches(other) for other in others) for one in some)

    counts = [len(first & second), len(first), len(second)]
    return [*counts, in_part(first, second), in_part(second, first)]


def f1(counts: np.ndarray) -> Dict[str, float]:
    """Return precision, recall and F1 from numbers of correct, predicted and true triples."""
    return {n: float(scores.of_counts(counts[None])[n][0]) for n in ("f1", "precision", "recall")}


# Numbers that explain an F1 of 0.
STAGES = ("texts", "best_name", "best_link", "names", "right_names", "predicted", "right_pairs")


def stage(planes: np.ndarray, found: Any, gold: Any, cells: Sequence[Cell]) -> List[float]:
    """Return the ``STAGES`` of a text from its scores, its triples and its positive cells."""
    entities, right = np.triu(planes[:2]), sum(planes[cell] > 0 for cell in cells if cell[0] < 2)
    pairs = len({triple[::2] for triple in found} & {triple[::2] for triple in gold})
    best = [planes[:2].max(), planes[2:].max()]
    return [1, *best, (entities > 0).sum(), right, len(found), pairs]


def explained(sums: Dict[str, float]) -> str:
    """Return why F1 is 0, and what to try, from the sums of ``STAGES`` over the texts."""
    texts, names = max(sums["texts"], 1.0), f"{sums['names']:,.0f} subjects and objects"
    if not sums["names"]:
        return (
            "F1 is 0: no score of a subject or object is above 0; the best of a text is "
            f"{sums['best_name'] / texts:.1f} on average. If it stays: more --epochs, then a "
            "higher --learning-rate"
        )
    names += f" ({sums['right_names']:,.0f} right)"
    if not sums["predicted"]:
        return (
            f"F1 is 0: {names}, but no predicate links them; the best score of a link is "
            f"{sums['best_link'] / texts:.1f} on average. Try more --epochs"
        )
    return (
        f"F1 is 0: {sums['predicted']:,.0f} triples of {names}; {sums['right_pairs']:,.0f} have "
        "the right subject and object with a wrong predicate. Try more --epochs; a lower "
        "--learning-rate if the loss rises"
    )


@dataclasses.dataclass(frozen=True)
class TripleScores(SampleScores):
    """Scores of triples; errors are wrong and missed ones, in the order of the texts.

    Attributes:
      names: predicates of the run.
      gold, found: true and predicted triples of each text.
    """

    names: Sequence[str]
    gold: List[List[Triple]]
    found: List[List[Triple]]
    columns = ("sample", "triple", "predicted", "text")
    metric = "f1"

    def rows(self) -> np.ndarray:
        return np.array(list(map(counted, self.found, self.gold)))

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        sums = rows.sum(0)
        precision, recall = sums[3:] / np.maximum(sums[1:3], 1)
        partial = 2.0 * precision * recall / max(precision + recall, 1e-9)
        return {**f1(sums[:3]), "partial_f1": float(partial)}

    def details(self) -> Dict[str, Any]:
        counts = np.zeros((len(self.names), 3), np.int64)
        for found, gold in zip(map(set, self.found), map(set, self.gold)):
            for column, triples in enumerate((found & gold, found, gold)):
                for triple in triples:
                    counts[self.names.index(triple.predicate), column] += 1
        return {"unit": "triples", "per_label": scores.rows(self.names, scores.of_counts(counts))}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        errors = [
            (i + 1, str(triple) * (triple in gold), str(triple) * (triple not in gold), text)
            for i, (gold, found, text) in enumerate(zip(self.gold, self.found, self.samples.texts))
            for triple in sorted({*gold} ^ {*found})
        ]
        return [dict(zip(self.columns, error)) for error in errors[:most]]


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the predicates of samples; return the function that scores the answers to them."""
    names = Labels.load(checkpoint.file("labels.json")).names
    gold = [[Triple(*triple) for triple in json.loads(label)] for label in samples.wanted]
    samples.check({triple.predicate for text in gold for triple in text}, names)
    return lambda answers: TripleScores(
        samples, names, gold, [[Triple(**triple) for triple in a["spo_list"]] for a in answers]
    )
