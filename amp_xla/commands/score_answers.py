"""Scores of a run's predictions on labelled samples: labels, entities, similarities, texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data import spans
from amp_xla.data.text.entities import unpack
from amp_xla.errors import AmpXlaError
from amp_xla.report import scores, texts
from amp_xla.training.metrics import auc, confusion

Found = Tuple[int, int, int]  # start, end, number of the label


@dataclasses.dataclass(frozen=True)
class Answers:
    """Predictions of a run for the samples of a file.

    Attributes:
      columns: column names of ``errors.tsv``.
    """

    run: Path
    checkpoint: str
    texts: List[str]
    columns: ClassVar[Tuple[str, ...]]

    def result(self, seed: int) -> Dict[str, Any]:
        """Return the scores for ``result.json``."""
        raise NotImplementedError

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return at most so many wrong predictions, the worst first."""
        raise NotImplementedError

    def against(self, other: Any, seed: int) -> Dict[str, Any]:
        """Return the comparison with another run on the same samples."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Labelled(Answers):
    """Predictions of a classifier; its errors begin with the least probable label.

    Attributes:
      names: labels of the run.
      labels, predicted: int [N], numbers of ``names``.
      chances: probability of each label, float64 [N, labels].
      scores: scores of pairs, float64 [N]; None if the run has none.
    """

    names: Tuple[str, ...]
    labels: np.ndarray
    predicted: np.ndarray
    chances: np.ndarray
    scores: Optional[np.ndarray] = None
    columns = ("sample", "label", "predicted", "probability", "probability_of_label", "text")

    def result(self, seed: int) -> Dict[str, Any]:
        labels, predicted, names = self.labels, self.predicted, self.names
        matrix = confusion(labels, predicted, len(names))
        error, bins = scores.calibration(self.chances.max(1), predicted == labels)
        metrics: Dict[str, Any] = _plain(scores.metrics(labels, predicted, seed))
        loss = -np.log(np.maximum(self._chances_of_labels(), 1e-12)).mean()
        metrics["loss"] = {"value": float(loss)}
        if len(names) == 2:
            metrics["auc"] = {"value": auc(labels == 1, self.chances[:, 1])}
        metrics["calibration_error"] = {"value": error}
        if self.scores is not None:
            metrics.update(_plain(scores.correlations(labels, self.scores, seed)))
        mistakes = [
            (int(matrix[i, j]), names[i], names[j]) for i, j in np.argwhere(matrix) if i != j
        ]
        return {
            "metrics": metrics,
            "per_label": scores.rows(names, scores.per_label(matrix)),
            "confusion": matrix.tolist(),
            "mistakes": sorted(mistakes, key=lambda mistake: -mistake[0])[:10],
            "calibration": bins,
        }

    def errors(self, most: int) -> List[Dict[str, Any]]:
        of_labels = self._chances_of_labels()
        order = np.argsort(of_labels, kind="stable")
        wrong = [int(i) for i in order if self.predicted[i] != self.labels[i]]
        errors = []
        for i in wrong[:most]:
            label, predicted = int(self.labels[i]), int(self.predicted[i])
            chances = float(self.chances[i, predicted]), float(of_labels[i])
            values = (i + 1, self.names[label], self.names[predicted], *chances, self.texts[i])
            errors.append(dict(zip(self.columns, values)))
        return errors

    def against(self, other: Labelled, seed: int) -> Dict[str, Any]:
        columns = [np.array(self.names)[numbers] for numbers in (self.labels, self.predicted)]
        columns += [np.array(other.names)[numbers] for numbers in (other.labels, other.predicted)]
        _, numbers = np.unique(np.concatenate(columns), return_inverse=True)
        labels, first, same, second = numbers.reshape(4, -1)
        if not np.array_equal(labels, same):
            raise AmpXlaError(
                f"{self.run} and {other.run} read different labels from the file, so they cannot "
                f"be compared; --text-field and --label-field of their training decide"
            )
        result = scores.compare(labels, first, second, seed)
        for name in ("accuracy", "macro_f1"):
            result[name] = result[name]._asdict()
        return {"run": str(other.run), **result}

    def _chances_of_labels(self) -> np.ndarray:
        """Return the probability of each sample's label, float64 [N]."""
        chances: np.ndarray = self.chances[np.arange(len(self.labels)), self.labels]
        return chances


@dataclasses.dataclass(frozen=True)
class Tagged(Answers):
    """Predictions of a tagger; wrong and missed entities are in the order of the texts.

    Attributes:
      names: labels of the run.
      gold, found: true and predicted entities of each text.
    """

    names: Tuple[str, ...]
    gold: List[List[Found]]
    found: List[List[Found]]
    columns = ("sample", "label", "predicted", "text")

    @classmethod
    def of(
        cls, run: Path, checkpoint: str, texts: List[str], names: Tuple[str, ...],
        wanted: Sequence[str], answers: Sequence[Dict[str, Any]],
    ) -> Tagged:  # fmt: skip
        """Return the predictions for texts; ``wanted`` are the true entities, packed as JSON."""
        number = {name: i for i, name in enumerate(names)}
        gold = [[(e.start, e.end, number[e.label]) for e in unpack(label)] for label in wanted]
        found = [[(s, e, number[label]) for s, e, label in a["entities"]] for a in answers]
        return cls(run, checkpoint, texts, names, gold, found)

    def result(self, seed: int) -> Dict[str, Any]:
        each = scores.per_entity(spans.counted(self.found, self.gold, len(self.names)))
        return {
            "unit": "entities",
            "metrics": _plain(scores.entity_metrics(self._counts(), seed)),
            "per_label": scores.rows(self.names, each),
        }

    def errors(self, most: int) -> List[Dict[str, Any]]:
        errors: List[Dict[str, Any]] = []
        for i, text in enumerate(self.texts):
            gold, found = set(self.gold[i]), set(self.found[i])
            for start, end, label in sorted(gold ^ found):
                shown = f"{start}:{end} {self.names[label]} {text[start:end]}"
                sides = (shown, "") if (start, end, label) in gold else ("", shown)
                errors.append(dict(zip(self.columns, (i + 1, *sides, text))))
            if len(errors) >= most:
                break
        return errors[:most]

    def against(self, other: Tagged, seed: int) -> Dict[str, Any]:
        if self.texts != other.texts or [len(g) for g in self.gold] != [len(g) for g in other.gold]:
            raise AmpXlaError(f"{self.run} and {other.run} read different entities from the file")
        difference = scores.compare_entities(self._counts(), other._counts(), seed)
        return {"run": str(other.run), "f1": difference._asdict()}

    def _counts(self) -> np.ndarray:
        """Count correct, predicted and true entities per text, int64 [texts, 3]."""
        return np.array([
            spans.counted([found], [gold], len(self.names)).sum(0)
            for found, gold in zip(self.found, self.gold)
        ])  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Scored(Answers):
    """Scores of pairs; errors are the pairs whose rank is farthest from the label's.

    Attributes:
      labels, values: labels of the file and scores of the run, float64 [N].
    """

    labels: np.ndarray
    values: np.ndarray
    columns = ("sample", "label", "score", "text")

    def result(self, seed: int) -> Dict[str, Any]:
        correlations = scores.correlations(self.labels, self.values, seed)
        return {"metrics": _plain(correlations)}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        away = np.abs(scores.ranks(self.labels) - scores.ranks(self.values))
        rows = zip(range(1, len(away) + 1), self.labels.tolist(), self.values.tolist(), self.texts)
        errors = [dict(zip(self.columns, row)) for row in rows]
        return [errors[i] for i in np.argsort(-away, kind="stable")[:most]]

    def against(self, other: Scored, seed: int) -> Dict[str, Any]:
        differences = scores.correlations(self.labels, self.values, seed, other.values)
        return {"run": str(other.run), "spearman": differences["spearman"]._asdict()}


@dataclasses.dataclass(frozen=True)
class Generated(Answers):
    """Generated texts; errors are those with the lowest ROUGE-L.

    Attributes:
      wanted, found: targets of the file and texts of the run.
      rouge: scores per text, see ``texts.rouge``.
    """

    wanted: Sequence[str]
    found: Sequence[str]
    rouge: np.ndarray
    columns = ("sample", "label", "predicted", "rouge_l", "text")

    @classmethod
    def of(
        cls, run: Path, checkpoint: str, sources: List[str], wanted: Sequence[str],
        found: Sequence[str],
    ) -> Generated:  # fmt: skip
        """Return the texts generated for ``sources``, with their scores."""
        return cls(run, checkpoint, sources, wanted, found, texts.rouge(found, wanted))

    def result(self, seed: int) -> Dict[str, Any]:
        metrics = _plain(texts.means(self.rouge, seed))
        metrics["bleu"] = {"value": texts.bleu(self.found, self.wanted)}
        return {"metrics": metrics}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        rouge = self.rouge[:, -1].tolist()
        rows = zip(range(1, len(rouge) + 1), self.wanted, self.found, rouge, self.texts)
        errors = [dict(zip(self.columns, row)) for row in rows]
        order = np.argsort(self.rouge[:, -1], kind="stable")
        return [errors[i] for i in order[:most] if rouge[i] < 1.0]

    def against(self, other: Generated, seed: int) -> Dict[str, Any]:
        if self.texts != other.texts or self.wanted != other.wanted:
            raise AmpXlaError(f"{self.run} and {other.run} read different targets from the file")
        difference = texts.means(self.rouge, seed, other.rouge)
        return {"run": str(other.run), "rouge_l": difference["rouge_l"]._asdict()}


def _plain(intervals: Dict[str, scores.Interval]) -> Dict[str, Any]:
    return {name: value._asdict() for name, value in intervals.items()}
