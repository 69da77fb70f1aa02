"""Triples from scores; precision, recall and F1; why F1 is 0. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from amp_xla.data.text.labels import Labels
from amp_xla.report import scores
from amp_xla.tasks.relations.data import ROLES, Placed, Triple, unpack
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.sample_scores import Samples, SampleScores, Scorer

MOST = 100  # subjects and objects of a text, the best ones: an untrained model finds thousands


def spans_of(plane: np.ndarray) -> np.ndarray:
    """Return first and last token of the best positive scores [L, L] above or on the diagonal."""
    cells = np.argwhere(np.triu(plane > 0))
    best = np.argsort(-plane[tuple(cells.T)], kind="stable")[:MOST]
    result: np.ndarray = cells[np.sort(best)]
    return result


def decode(planes: np.ndarray, length: int) -> List[Tuple[int, ...]]:
    """Return (predicate, subject's first and last token, object's) of each triple of a text.

    Args:
      planes: scores, float [2 + 2 * predicates, L, L]; see ``data.cells_of``.
      length: number of tokens; [CLS] and [SEP] are never part of a name.
    """
    inner = planes[:, 1 : length - 1, 1 : length - 1]
    count = (len(planes) - 2) // 2
    subjects, objects = spans_of(inner[0]), spans_of(inner[1])
    heads, tails = (
        part[:, subjects[:, end, None], objects[:, end]] > 0
        for end, part in enumerate((inner[2 : 2 + count], inner[2 + count :]))
    )
    return [
        (p, *(int(place) + 1 for place in (*subjects[i], *objects[j])))
        for p, i, j in np.argwhere(heads & tails).tolist()
    ]


def triples_of(
    planes: np.ndarray, placed: Placed, text: int, names: Sequence[str]
) -> List[Triple]:  # fmt: skip
    """Return the triples of a text, without duplicates, by its scores."""
    found = decode(planes, int(placed.encoded.lengths[text]))
    return sorted({
        Triple(placed.words(text, sh, st), names[p], placed.words(text, oh, ot))
        for p, sh, st, oh, ot in found
    })  # fmt: skip


def counted(found: Sequence[Triple], gold: Sequence[Triple]) -> List[int]:
    """Count correct, predicted and true triples of a text; then those that match partly.

    In part, the predicate is the same, and of the subjects, as of the objects, one contains the
    other: the number of predicted triples that have such a true one, and the reverse.
    """
    first, second = set(found), set(gold)

    def partly(one: Triple, others: Any) -> bool:
        return any(
            one.predicate == other.predicate
            and all(a in b or b in a for a, b in zip(one[::2], other[::2]))
            for other in others
        )

    matches = (sum(partly(t, others) for t in own) for own, others in
               ((first, second), (second, first)))  # fmt: skip
    return [len(first & second), len(first), len(second), *matches]


def f1(counts: np.ndarray) -> Dict[str, float]:
    """Return precision, recall and F1 over all triples; 0 if there are none.

    Args:
      counts: correct, predicted and true triples.
    """
    correct, predicted, true = (float(count) for count in counts)
    return {
        "f1": 2.0 * correct / max(predicted + true, 1.0),
        "precision": correct / max(predicted, 1.0),
        "recall": correct / max(true, 1.0),
    }


# What ``stage`` counts in a text, to explain an F1 of 0.
STAGES = ("texts", "best_name", "best_link", "names", "right_names", "predicted", "right_pairs")


def stage(planes: np.ndarray, length: int, found: Any, gold: Any, cells: Any) -> List[float]:
    """Return the numbers of a text that ``STAGES`` names.

    Args:
      planes, length: as for ``decode``.
      found, gold: predicted and true triples.
      cells: positive cells, as in ``data.cells_of``.
    """
    inner = planes[:, 1 : length - 1, 1 : length - 1]
    if not inner.size:
        return [0.0] * len(STAGES)
    right = sum(planes[cell] > 0 for cell in cells if cell[0] < 2)
    pairs = len({t[::2] for t in found} & {t[::2] for t in gold})
    names = np.triu(inner[:2] > 0).sum()
    return [1, inner[:2].max(), inner[2:].max(), names, right, len(found), pairs]


def explained(sums: Dict[str, float]) -> str:
    """Return why F1 is 0, and what to try, from the sums of ``STAGES`` over the texts."""
    texts = max(sums["texts"], 1.0)
    if not sums["names"]:
        return (
            "F1 is 0: no subject or object is predicted, because no score is above 0 (the best of "
            f"a text is {sums['best_name'] / texts:.1f} on average); if it does not rise: more "
            "--epochs, then a higher --learning-rate"
        )
    names = f"{sums['names']:,.0f} subjects and objects, of which {sums['right_names']:,.0f} right"
    if not sums["predicted"]:
        return (
            f"F1 is 0: {names}, and no predicate that links them (the best score of a link is "
            f"{sums['best_link'] / texts:.1f} on average, 0 is needed): more --epochs"
        )
    return (
        f"F1 is 0: {sums['predicted']:,.0f} triples from {names}; {sums['right_pairs']:,.0f} have "
        "the right subject and object, but a wrong predicate: "
        + (
            "are predicates confused in the files?"
            if sums["right_pairs"]
            else "more --epochs, or a lower --learning-rate if the loss rises"
        )
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
        """Count as ``counted`` does, per text, int64 [texts, 5]."""
        return np.array(list(map(counted, self.found, self.gold)), np.int64)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        _, predicted, true, in_part, of_true = sums = rows.sum(0)
        precision, recall = in_part / max(predicted, 1), of_true / max(true, 1)
        partial = 2.0 * precision * recall / max(precision + recall, 1e-9)
        return {**f1(sums[:3]), "partial_f1": float(partial)}

    def details(self) -> Dict[str, Any]:
        number = {name: i for i, name in enumerate(self.names)}
        counts = np.zeros((len(self.names), 3), np.int64)
        for found, gold in zip(map(set, self.found), map(set, self.gold)):
            for column, triples in enumerate((found & gold, found, gold)):
                for triple in triples:
                    counts[number[triple.predicate], column] += 1
        per_label = scores.rows(self.names, scores.of_counts(counts))
        return {"unit": "triples", "per_label": per_label}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        errors: List[Dict[str, Any]] = []
        for i, text in enumerate(self.samples.texts):
            gold, found = set(self.gold[i]), set(self.found[i])
            for triple in sorted(gold ^ found):
                sides = (triple.shown(), "") if triple in gold else ("", triple.shown())
                errors.append(dict(zip(self.columns, (i + 1, *sides, text))))
            if len(errors) >= most:
                break
        return errors[:most]


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the predicates of samples; return the function that scores the answers to them."""
    names = Labels.load(checkpoint.file("labels.json")).names
    gold = [unpack(label) for label in samples.wanted]
    samples.check({triple.predicate for text in gold for triple in text}, names)

    def scorer(answers: List[Dict[str, Any]]) -> TripleScores:
        found = [[Triple(*(t[r] for r in ROLES)) for t in each["spo_list"]] for each in answers]
        return TripleScores(samples, names, gold, found)

    return scorer
