"""``amp-xla predict``: labels or entities of new text, from a file or from standard input."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.config import parse
from amp_xla.data.slots.lines import LineError
from amp_xla.data.text.lines import called, every_line
from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.recipe import own_recipe, recipe_module
from amp_xla.training.checkpoint import Checkpoint, find


@dataclasses.dataclass(frozen=True)
class SavedOptions:
    """The checkpoint of a run, and the run's recipe."""

    checkpoint: Optional[str] = None
    """name of a checkpoint in the run folder; none = best"""
    recipe: Optional[str] = None
    """path of the recipe's file, for other recipes than this project's; none = the run's"""

    def load(self, run: str) -> Tuple[Checkpoint, Any]:
        """Return the checkpoint and the recipe's module."""
        saved = find(Path(run), self.checkpoint)
        return saved, recipe_module(self.recipe or own_recipe(saved.recipe))

    def open(self, run: str, function: str, advice: str) -> Tuple[Checkpoint, Any]:
        """Return the checkpoint and a function of the recipe's module.

        Raises:
          AmpXlaError: the recipe has no such function; the message ends with ``advice``.
        """
        saved, recipe = self.load(run)
        found = getattr(recipe, function, None)
        if found is None:
            name = self.recipe or saved.recipe
            raise AmpXlaError(f"{run}: recipe {name} cannot {function}; {advice}")
        return saved, found


@dataclasses.dataclass(frozen=True)
class Config:
    """Label new text with a trained run."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""
    file: Optional[str] = None
    """one text per line, also gzipped; for pairs a tab before the second; none = standard input"""
    json: bool = False
    """print a JSON object per line, with the probability of each label, or with the entities"""
    saved: SavedOptions = SavedOptions()


def main(argv: List[str]) -> int:
    """Print label, probability and text, separated by tabs, or with ``--json`` as JSON lines.

    A tagger's answer is its entities, ``start:end label words``, with tabs between them. Line i of
    the output answers line i of the input; the answer to a blank line is blank, in JSON an object
    with the label null.
    """
    config = parse(Config, argv, "amp-xla predict RUN FILE")
    advice = f"a classifier starts from it: amp-xla train classification --bert {config.run}"
    saved, predict = config.saved.open(config.run, "predict", advice)
    lines = lines_of(config.file)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    names: Sequence[str] = ()
    rows: Sequence[Any] = ()
    separator: Sequence[Optional[str]] = ()
    try:
        if numbers:
            answers = predict(saved, [lines[n - 1] for n in numbers])
            whole = answers if isinstance(answers, tuple) else ((), answers)
            names, rows, *separator = whole
    except LineError as error:
        path = called(config.file or "-")
        raise AmpXlaError(f"{path}, line {numbers[error.index]}: {error.reason}") from error
    row_of = dict(zip(numbers, rows))
    answer = _json if config.json else _answer
    output.lines(
        answer(text, names, row_of.get(number), *separator) for number, text in enumerate(lines, 1)
    )
    return 0


def _answer(text: str, names: Sequence[str], row: Any, separator: Optional[str] = None) -> str:
    if row is None:
        return ""
    if isinstance(row, list):
        words = (f"{e.start}:{e.end} {e.label} {text[e.start : e.end]}" for e in row)
        return "\t".join(output.printable(word.replace("\t", " ")) for word in words)
    chosen = np.flatnonzero(row > 0.5) if separator else [int(row.argmax())]
    labels = (separator or "").join(output.printable(names[i]) for i in chosen)
    return f"{labels}\t{(separator or '').join(f'{row[i]:.4f}' for i in chosen)}\t{text}"


def _json(text: str, names: Sequence[str], row: Any, separator: Optional[str] = None) -> str:
    record: Dict[str, Any] = {"labels" if separator else "label": None, "text": text}
    if isinstance(row, list):
        record = {"text": text, "entities": row}
    elif row is not None:
        chances = {name: float(f"{chance:.7g}") for name, chance in zip(names, row)}
        label = names[int(row.argmax())]
        record = {"label": label, "probability": chances[label], "text": text}
        if separator:
            record = {"labels": [n for n, p in zip(names, row) if p > 0.5], "text": text}
        record["probabilities"] = chances
    line = json.dumps(record, ensure_ascii=False)
    # Output escapes control characters in a form that JSON does not have.
    return line if line.isprintable() else json.dumps(record)


def lines_of(file: Optional[str]) -> List[str]:
    """Return all lines of a file, or of standard input without one.

    Raises:
      AmpXlaError: A line is not UTF-8 text.
    """
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        print("type texts, one a line; end with Ctrl-D", file=sys.stderr)
    path = "-" if file is None else file
    lines, bad = every_line(path)
    if bad:
        raise AmpXlaError(
            f"{called(path)}, line {bad[0].line}: {bad[0].reason} ({len(bad):,} such lines); text "
            f"in UTF-8 is needed"
        )
    if not any(line.strip() for line in lines):
        print(f"warning: {output.printable(called(path))} has no text", file=sys.stderr)
    return lines
