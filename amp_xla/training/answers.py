"""Answers to lines of text, as columns and as JSON fields; ``amp-xla predict`` prints them."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla.errors import AmpXlaError
from amp_xla.process import output

# Answer to one line: columns, and fields of a JSON object.
Row = Tuple[List[str], Mapping[str, Any]]


class Answers(NamedTuple):
    """Answers to lines of text, in the order of the lines: the result of a recipe's ``predict``.

    Attributes:
      rows: (columns to print, fields of a JSON object) for each line. Answers of a recipe's
        ``rank`` must have the field ``score``.
      blank: the JSON fields of the answer to a blank line.
    """

    rows: List[Row]
    blank: Mapping[str, Any] = {"label": None}


def label_answers(
    lines: Sequence[str],
    labels: Sequence[str],
    probabilities: np.ndarray,
    separator: Optional[str] = None,
) -> Answers:
    """Return the predicted labels of each line, with the probabilities of all labels.

    Args:
      probabilities: probability of each label, float [lines, labels].
      separator: None = predict the most probable label; a text = predict all labels with a
        probability above 0.5, and join them by this text.
    """
    rows: List[Row] = []
    for line, row in zip(lines, probabilities):
        named = {name: float(f"{value:.7g}") for name, value in zip(labels, row)}
        chosen = [int(row.argmax())] if separator is None else np.flatnonzero(row > 0.5)
        names = [labels[i] for i in chosen]
        cells = map(output.printable, names), (f"{row[i]:.4f}" for i in chosen)
        fields: Mapping[str, Any] = {"labels": names, "probabilities": named}
        if separator is None:
            fields = {"label": names[0], "probability": named[names[0]], "probabilities": named}
        rows.append(([*map((separator or "").join, cells), line], fields))
    return Answers(rows, {"label" if separator is None else "labels": None})


def refuse_nan(answer: Any) -> None:
    """Raise AmpXlaError if an answer is NaN, or has NaN in lists or objects."""
    values = answer.values() if isinstance(answer, Mapping) else answer
    for value in values if isinstance(answer, (Mapping, list, tuple)) else ():
        refuse_nan(value)
    if answer != answer:
        raise AmpXlaError("some answers are NaN, not numbers: the run's weights cannot be used")


def checked(predicted: Any, lines: Sequence[str]) -> Answers:
    """Check the result of a recipe's ``predict`` for ``lines``, and return it.

    Raises:
      AmpXlaError: ``predicted`` is not ``Answers``, has too few or many rows, or a field is NaN.
    """
    if not isinstance(predicted, Answers):
        raise AmpXlaError(
            f"the recipe's predict returned {type(predicted).__name__}; allowed: Answers (see "
            f"amp_xla/training/answers.py)"
        )
    refuse_nan([fields for _, fields in predicted.rows])
    count = len(predicted.rows)
    if count != len(lines):
        raise AmpXlaError(f"the recipe's predict gave {count} answers to {len(lines)} lines")
    return predicted
