"""Scores of answers to labelled samples, for ``amp-xla evaluate --file``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from amp_xla.data.text.labels import Labels
from amp_xla.errors import AmpXlaError
from amp_xla.report import scores
from amp_xla.training.checkpoint import Checkpoint


class Samples(NamedTuple):
    """Labelled samples of a file, and the run that answers them.

    ``texts`` are input lines for ``predict``; ``wanted`` are the labels, as read from the file.
    """

    run: Path
    checkpoint: str
    file: str
    texts: List[str]
    wanted: Sequence[Any]

    def check(self, labels: Iterable[str], names: Sequence[str]) -> None:
        """Raise AmpXlaError if one of the file's ``labels`` is not among the run's ``names``."""
        unknown = sorted(set(labels) - set(names))
        if unknown:
            label = unknown[0][:60]
            raise AmpXlaError(
                f"{self.file} has the label {label!r}, which is not a label of {self.run}; "
                f"its labels are: {', '.join(name[:60] for name in names[:20])}"
                f"{', ...' if len(names) > 20 else ''}"
            )


@dataclasses.dataclass(frozen=True)
class SampleScores:
    """Scores of a run's answers to samples.

    Attributes:
      columns: column names of ``errors.tsv``; runs with the same columns can be compared.
      metric: name of the score that decides which of two runs is better.
    """

    samples: Samples
    columns: ClassVar[Tuple[str, ...]]
    metric: ClassVar[str]

    def rows(self) -> np.ndarray:
        """Return the numbers from which scores are computed, one row per sample, [N, K]."""
        raise NotImplementedError

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        """Return name -> score, computed from ``rows`` alone."""
        raise NotImplementedError

    def details(self) -> Dict[str, Any]:
        """Return more fields for ``result.json``, e.g. ``metrics`` without a bootstrap interval."""
        return {}

    def errors(self, most: int) -> List[Dict[str, Any]]:
        """Return at most ``most`` rows of ``errors.tsv``, the worst first if they can be ranked."""
        raise NotImplementedError

    def result(self, seed: int) -> Dict[str, Any]:
        """Return the scores for ``result.json``, with intervals from a bootstrap with this seed."""
        details = self.details()
        single = {name: {"value": value} for name, value in details.get("metrics", {}).items()}
        return {**details, "metrics": {**scores.bootstrap(self.rows(), self.score, seed), **single}}

    def against(self, other: Any, seed: int) -> Dict[str, Any]:
        """Return these scores minus those of another run, with bootstrap intervals."""
        mine, others = self.samples, other.samples
        if (mine.texts, list(mine.wanted)) != (others.texts, list(others.wanted)):
            raise AmpXlaError(
                f"{mine.run} and {others.run} read different columns of the file (--text-field and "
                f"--label-field of their training), so they cannot be compared"
            )
        rows_of_this = self.rows()
        width = rows_of_this.shape[1]

        def gain(rows: np.ndarray) -> Dict[str, float]:
            mine, other_scores = self.score(rows[:, :width]), other.score(rows[:, width:])
            return {name: mine[name] - other_scores[name] for name in mine if name in other_scores}

        both = np.concatenate([rows_of_this, other.rows()], 1)
        return {"run": str(others.run), **scores.bootstrap(both, gain, seed)}

    def _listed(self, order: Iterable[int], *values: Sequence[Any]) -> List[Dict[str, Any]]:
        """Return the rows of ``errors.tsv`` for the samples in ``order``."""
        cells = ((i + 1, *(column[i] for column in values), self.samples.texts[i]) for i in order)
        return [dict(zip(self.columns, row)) for row in cells]


# Function from the objects that ``predict --json`` prints to their scores.
Scorer = Callable[[List[Dict[str, Any]]], SampleScores]


@dataclasses.dataclass(frozen=True)
class LabelScores(SampleScores):
    """Scores of labels; errors are sorted by the correct label's probability, the lowest first.

    ``names`` are the run's labels; ``probabilities`` are float64 [N, labels].
    """

    names: Sequence[str]
    probabilities: np.ndarray
    columns = ("sample", "label", "predicted", "probability", "probability_of_label", "text")
    metric = "accuracy"

    @classmethod
    def of(cls, samples: Samples, names: Sequence[str], answers: Any, *others: Any) -> LabelScores:
        """Return the scores of ``answers``: JSON objects with the ``probabilities`` of ``names``.

        ``others`` are further fields of a subclass.
        """
        rows = [[answer["probabilities"][name] for name in names] for answer in answers]
        return cls(samples, names, np.array(rows, np.float64), *others)

    def rows(self) -> np.ndarray:
        """Return each sample's label and prediction as indices into ``names``, int64 [N, 2]."""
        number = {name: i for i, name in enumerate(self.names)}
        labels = np.array([number[label] for label in self.samples.wanted])
        return np.stack([labels, self.probabilities.argmax(1)], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return scores.classification(scores.confusion(rows[:, 0], rows[:, 1], len(self.names)))

    def details(self) -> Dict[str, Any]:
        labels, predicted = self.rows()[:, :2].T.astype(int)
        matrix = scores.confusion(labels, predicted, len(self.names))
        error, bins = scores.calibration(self.probabilities.max(1), predicted == labels)
        probabilities = self.probabilities[np.arange(len(labels)), labels]
        metrics = {"loss": float(-np.log(np.maximum(probabilities, 1e-12)).mean())}
        if len(self.names) == 2:
            metrics["auc"] = scores.auc(labels == 1, self.probabilities[:, 1])
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
        of_labels = self.probabilities[np.arange(len(labels)), labels]
        order = np.argsort(of_labels, kind="stable").tolist()
        wrong = [i for i in order if predicted[i] != labels[i]][:most]
        names = [self.names[i] for i in predicted]
        probabilities = self.probabilities.max(1).tolist(), of_labels.tolist()
        return self._listed(wrong, self.samples.wanted, names, *probabilities)

    def against(self, other: LabelScores, seed: int) -> Dict[str, Any]:
        result = super().against(other, seed)
        first, second = (rows[:, 0] == rows[:, 1] for rows in (self.rows(), other.rows()))
        only = int((first & ~second).sum()), int((second & ~first).sum())
        p = scores.mcnemar(*only)
        return {**result, "only_first": only[0], "only_second": only[1], "p": p}


@dataclasses.dataclass(frozen=True)
class NumberScores(SampleScores):
    """Scores of the predicted numbers ``values``, float64 [N].

    A sample has a position among all samples sorted by label, and another one sorted by prediction.
    Errors are sorted by the difference of these two, the largest first.
    """

    values: np.ndarray
    columns = ("sample", "label", "score", "text")
    metric = "spearman"

    def rows(self) -> np.ndarray:
        return np.stack([np.array(self.samples.wanted, np.float64), self.values], 1)

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return scores.correlations(rows[:, 0], rows[:, 1])

    def errors(self, most: int) -> List[Dict[str, Any]]:
        labels, values = self.rows().T
        order = np.argsort(-np.abs(scores.ranks(labels) - scores.ranks(values)), kind="stable")
        return self._listed(order[:most].tolist(), labels.tolist(), values.tolist())


@dataclasses.dataclass(frozen=True)
class TextScores(SampleScores):
    """Scores of texts; errors are sorted by the metric, the lowest first.

    Attributes:
      found: the text predicted for each sample; its label is a text, too.
      each: scores of each sample, float64 [N, scores]; the last score is ``metric``.
    """

    found: Sequence[str]
    each: np.ndarray
    names: ClassVar[Tuple[str, ...]]

    def rows(self) -> np.ndarray:
        return self.each

    def score(self, rows: np.ndarray) -> Dict[str, float]:
        return dict(zip(self.names, rows.mean(0).tolist()))

    def errors(self, most: int) -> List[Dict[str, Any]]:
        last = self.each[:, -1]
        order = [i for i in np.argsort(last, kind="stable").tolist() if last[i] < 1.0]
        return self._listed(order[:most], self.samples.wanted, self.found, last.tolist())


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of samples; return the function that scores answers of ``label_answers``."""
    names = Labels.load(checkpoint.file("labels.json")).names
    samples.check(samples.wanted, names)
    return lambda answers: LabelScores.of(samples, names, answers)
