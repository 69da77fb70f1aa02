"""Answers to lines of text, as columns and as JSON fields; ``amp-xla predict`` prints them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.errors import AmpXlaError
from amp_xla.process import output

# Answer to one line: columns, and fields of a JSON object.
Row = Tuple[List[str], Dict[str, Any]]


class Answers:
    """Answers to lines of text, in their order; a recipe's ``predict`` returns them."""

    def rows(self, lines: Sequence[str]) -> List[Row]:
        """Return the answer to each line; after ``rank``, its fields have a ``score``."""
        raise NotImplementedError

    def blank(self) -> Dict[str, Any]:
        """Return the JSON fields of a blank line."""
        return {"label": None}


@dataclasses.dataclass(frozen=True)
class LabelAnswers(Answers):
    """Labels with their probabilities.

    Attributes:
      labels: names of the labels.
      probabilities: probability of each label, float [lines, labels].
      separator: None = the most probable label is predicted; otherwise all labels above 0.5 are,
        joined by this text.
    """

    labels: Sequence[str]
    probabilities: np.ndarray
    separator: Optional[str] = None

    def rows(self, lines: Sequence[str]) -> List[Row]:
        row_of = self._most_probable if self.separator is None else self._above_half
        return list(map(row_of, lines, self.probabilities))

    def blank(self) -> Dict[str, Any]:
        return {"label" if self.separator is None else "labels": None}

    def _most_probable(self, line: str, row: np.ndarray) -> Row:
        label, named = self.labels[int(row.argmax())], self._named(row)
        fields = {"label": label, "probability": named[label], "probabilities": named}
        return [output.printable(label), f"{row.max():.4f}", line], fields

    def _above_half(self, line: str, row: np.ndarray) -> Row:
        chosen, separator = np.flatnonzero(row > 0.5), self.separator or ""
        labels = [self.labels[i] for i in chosen]
        cells = map(output.printable, labels), (f"{row[i]:.4f}" for i in chosen)
        fields = {"labels": labels, "probabilities": self._named(row)}
        return [*map(separator.join, cells), line], fields

    def _named(self, row: np.ndarray) -> Dict[str, float]:
        return {name: float(f"{value:.7g}") for name, value in zip(self.labels, row)}


def rows_of(predicted: Any, lines: Sequence[str]) -> Tuple[List[Row], Dict[str, Any]]:
    """Return the answer to each line, and the JSON fields of a blank line.

    Args:
      predicted: what a recipe's ``predict`` returned; a pair is labels and their probabilities.
      lines: the lines that it answers.

    Raises:
      AmpXlaError: it returned something else, or too few or too many answers.
    """
    if isinstance(predicted, tuple) and len(predicted) == 2:
        predicted = LabelAnswers(*predicted)
    if not isinstance(predicted, Answers):
        raise AmpXlaError(
            f"the recipe's predict returned {type(predicted).__name__}; allowed: Answers (see "
            f"amp_xla/training/answers.py), or the pair of labels and their probabilities, float "
            f"[lines, labels]"
        )
    rows = predicted.rows(lines)
    if len(rows) != len(lines):
        raise AmpXlaError(f"the recipe's predict gave {len(rows)} answers to {len(lines)} lines")
    return rows, predicted.blank()
