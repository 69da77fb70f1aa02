"""Scores of predictions on labelled samples: one class per kind of prediction."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data import spans
from amp_xla.data.text.entities import Entity
from amp_xla.errors import AmpXlaError
from amp_xla.report import scores, texts


@dataclasses.dataclass(frozen=True)
class Answers:
    """Predictions of a run for the samples of a file.

    Attributes:
      columns: column names of ``errors.tsv``.
      wanted: the correct labels, as read from the file.
    """

    run: Path
    checkpoint: str
    texts: List[str]
    wanted: Sequence[Any]
    columns: ClassVar[Tuple[str, ...]]

    def rows(self) -> np.ndarray:
        """Return the numbers from which scores are computed, one row per sample, [N, K]."""
        raise NotImplementedError

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        """Return name -> score, computed from ``rows`` alone."""
        raise NotImplementedError

    def details(self) -> Dict[str, Any]:
        """Return more fields for ``result.json``, e.g. ``metrics``: scores without an interval."""
        return {}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return at most ``most`` wrong predictions, the worst first."""
        raise NotImplementedError

    def result(self, seed: int) -> Dict[str, Any]:
        """Return the scores for ``result.json``."""
        details = self.details()
        single = {name: {"value": value} for name, value in details.get("metrics", {}).items()}
        return {**details, "metrics": {**scores.bootstrap(self.rows(), self.score, seed), **single}}

    def against(self, other: Any, seed: int) -> Dict[str, Any]:
        """Return the differences between these scores and another run's, with intervals."""
        if (self.texts, list(self.wanted)) != (other.texts, list(other.wanted)):
            raise AmpXlaError(
                f"{self.run} and {other.run} read different columns of the file (--text-field and "
                f"--label-field of their training), so they cannot be compared"
            )
        rows_of_this = self.rows()
        width = rows_of_this.shape[1]

        def gain(rows: np.ndarray) -> Dict[str, float]:
            mine, other_scores = self.score(rows[:, :width]), other.score(rows[:, width:])
            return {name: mine[name] - other_scores[name] for name in mine if name in other_scores}

        both = np.concatenate([rows_of_this, other.rows()], 1)
        return {"run": str(other.run), **scores.bootstrap(both, gain, seed)}

    def _listed(self, order: Iterable[int], *values: Sequence[Any]) -> List[Dict[str, Any]]:
        """Return the rows of ``errors.tsv`` for the samples in ``order``."""
        cells = ((i + 1, *(column[i] for column in values), self.texts[i]) for i in order)
        return [dict(zip(self.columns, row)) for row in cells]


@dataclasses.dataclass(frozen=True)
class Labelled(Answers):
    """Predictions of a classifier; errors are sorted by the probability of the correct label.

    Attributes:
      names: labels of the run.
      chances: probability of each label, float64 [N, labels].
      scores: scores of pairs, float64 [N]; None if the run has none.
    """

    names: Tuple[str, ...]
    chances: np.ndarray
    scores: Optional[np.ndarray] = None
    columns = ("sample", "label", "predicted", "probability", "probability_of_label", "text")

    def rows(self) -> np.ndarray:
        """Return label and prediction as indices into ``names``, and the score if there is one."""
        number = {name: i for i, name in enumerate(self.names)}
        columns = [np.array([number[label] for label in self.wanted]), self.chances.argmax(1)]
        return np.stack(columns + [self.scores] * (self.scores is not None), 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        matrix = scores.confusion(rows[:, 0], rows[:, 1], len(self.names))
        values = scores.classification(matrix)
        return {**values, **(_correlations(rows[:, 0], rows[:, 2]) if rows.shape[1] > 2 else {})}

    def details(self) -> Dict[str, Any]:
        labels, predicted = self.rows()[:, :2].T.astype(int)
        matrix = scores.confusion(labels, predicted, len(self.names))
        error, bins = scores.calibration(self.chances.max(1), predicted == labels)
        chances = self.chances[np.arange(len(labels)), labels]
        metrics = {"loss": float(-np.log(np.maximum(chances, 1e-12)).mean())}
        if len(self.names) == 2:
            metrics["auc"] = scores.auc(labels == 1, self.chances[:, 1])
        mistakes = [
            (int(matrix[i, j]), self.names[i], self.names[j])
            for i, j in np.argwhere(matrix)
            if i != j
        ]
        return {
            "metrics": {**metrics, "calibration_error": error},
            "per_label": scores.rows(self.names, scores.per_label(matrix)),
            "confusion": matrix.tolist(),
            "mistakes": sorted(mistakes, key=lambda mistake: -mistake[0])[:10],
            "calibration": bins,
        }

    def errors(self, most: int) -> List[Dict[str, Any]]:
        labels, predicted = self.rows()[:, :2].T.astype(int)
        of_labels = self.chances[np.arange(len(labels)), labels]
        order = np.argsort(of_labels, kind="stable").tolist()
        wrong = [i for i in order if predicted[i] != labels[i]][:most]
        names = [self.names[i] for i in predicted]
        chances = self.chances.max(1).tolist(), of_labels.tolist()
        return self._listed(wrong, self.wanted, names, *chances)

    def against(self, other: Labelled, seed: int) -> Dict[str, Any]:
        result = super().against(other, seed)
        first, second = (rows[:, 0] == rows[:, 1] for rows in (self.rows(), other.rows()))
        only = int((first & ~second).sum()), int((second & ~first).sum())
        p = scores.mcnemar(*only)
        return {**result, "only_first": only[0], "only_second": only[1], "p": p}


@dataclasses.dataclass(frozen=True)
class Tagged(Answers):
    """Predictions of a tagger; errors are wrong and missed entities, in the order of the texts.

    Attributes:
      names: labels of the run.
      gold, found: true and predicted entities of each text.
    """

    names: Tuple[str, ...]
    gold: List[List[Entity]]
    found: List[List[Entity]]
    columns = ("sample", "label", "predicted", "text")

    def rows(self) -> np.ndarray:
        """Count correct, predicted and true entities per text, int64 [texts, 3]."""
        return np.array([
            spans.counted([found], [gold], self.names).sum(0)
            for found, gold in zip(self.found, self.gold)
        ])  # fmt: skip

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return spans.f1(rows)

    def details(self) -> Dict[str, Any]:
        each = scores.per_entity(spans.counted(self.found, self.gold, self.names))
        return {"unit": "entities", "per_label": scores.rows(self.names, each)}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        errors: List[Dict[str, Any]] = []
        for i, text in enumerate(self.texts):
            gold, found = set(self.gold[i]), set(self.found[i])
            for entity in sorted(gold ^ found):
                shown = entity.shown(text)
                sides = (shown, "") if entity in gold else ("", shown)
                errors.append(dict(zip(self.columns, (i + 1, *sides, text))))
            if len(errors) >= most:
                break
        return errors[:most]


@dataclasses.dataclass(frozen=True)
class Scored(Answers):
    """Predicted similarities; errors are sorted by the distance between their rank and the label's.

    Attributes:
      values: predicted similarities, float64 [N]; ``wanted`` are numbers, too.
    """

    values: np.ndarray
    columns = ("sample", "label", "score", "text")

    def rows(self) -> np.ndarray:
        return np.stack([np.array(self.wanted, np.float64), self.values], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return _correlations(rows[:, 0], rows[:, 1])

    def errors(self, most: int) -> List[Dict[str, Any]]:
        labels, values = self.rows().T
        order = np.argsort(-np.abs(scores.ranks(labels) - scores.ranks(values)), kind="stable")
        return self._listed(order[:most].tolist(), labels.tolist(), values.tolist())


@dataclasses.dataclass(frozen=True)
class Generated(Answers):
    """Generated texts; errors are sorted by ROUGE-L, the lowest first.

    Attributes:
      found: generated texts; ``wanted`` are the target texts.
      rouge: F1 of ROUGE-1, -2 and -L per text; see ``texts.rouge``.
    """

    found: Sequence[str]
    rouge: np.ndarray
    columns = ("sample", "label", "predicted", "rouge_l", "text")

    def rows(self) -> np.ndarray:
        return self.rouge

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return dict(zip(texts.ROUGE, rows.mean(0)))

    def details(self) -> Dict[str, Any]:
        return {"metrics": {"bleu": texts.bleu(self.found, self.wanted)}}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        rouge_l = self.rouge[:, -1]
        order = [i for i in np.argsort(rouge_l, kind="stable").tolist() if rouge_l[i] < 1.0]
        return self._listed(order[:most], self.wanted, self.found, rouge_l.tolist())


def _correlations(labels: np.ndarray, values: np.ndarray) -> Dict[str, float]:
    return {
        "spearman": scores.spearman(labels, values),
        "pearson": scores.pearson(labels, values),
    }
