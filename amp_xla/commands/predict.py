"""``amp-xla predict``: labels or entities of new text, from a file or from standard input."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.config import parse
from amp_xla.data.slots.lines import LineError
from amp_xla.data.text.lines import called, every_line
from amp_xla.errors import AmpXlaError
from amp_xla.models.options import GenerationOptions
from amp_xla.process import output
from amp_xla.recipe import own_recipe, recipe_module
from amp_xla.training.checkpoint import Checkpoint, find

Row = Tuple[List[str], Dict[str, Any]]  # the answer to a text: as columns, and as JSON


@dataclasses.dataclass(frozen=True)
class SavedOptions:
    """The checkpoint of a run, and the run's recipe."""

    checkpoint: Optional[str] = None
    """name of a checkpoint in the run folder; none = best"""
    recipe: Optional[str] = None
    """path of the recipe's file, if the recipe is your own; none = the run's"""

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
    """one text per line, or two with a tab between; may be gzipped; none = standard input"""
    json: bool = False
    """print a JSON object per line, with the probability of each label, or with the entities"""
    query: Optional[str] = None
    """rank the lines of the file, the most similar to this text first (similarity runs)"""
    saved: SavedOptions = SavedOptions()
    generation: GenerationOptions = GenerationOptions()


def main(argv: List[str]) -> int:
    """Print label, probability and text, separated by tabs, or with ``--json`` as JSON lines.

    A tagger prints its entities, ``start:end label words``, separated by tabs; seq2seq runs print
    the text they generate. Line i of the output belongs to line i of the input; for a blank line it
    is blank, or a JSON object with the label null. Similarity runs print a score, after the label
    if there is one; ``--query`` sorts the lines by score.
    """
    config = parse(Config, argv, "amp-xla predict RUN FILE")
    if config.query is None:
        advice = f"a classifier starts from it: amp-xla train classification --bert {config.run}"
        saved, predict = config.saved.open(config.run, "predict", advice)
    else:
        saved, rank = config.saved.open(config.run, "rank", "--query needs a run of similarity")
        predict = functools.partial(rank, query=config.query)
    if "generation" in inspect.signature(predict).parameters:
        predict = functools.partial(predict, generation=config.generation)
    elif config.generation != GenerationOptions():
        raise AmpXlaError(
            f"--beams, --top-k, ...: {config.run} is a run of {saved.recipe}; seq2seq is needed"
        )
    lines = lines_of(config.file)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    texts = [lines[number - 1] for number in numbers]
    rows: List[Row] = []
    try:
        if numbers:
            rows = _rows(predict(saved, texts), texts)
    except LineError as error:
        path = called(config.file or "-")
        raise AmpXlaError(f"{path}, line {numbers[error.index]}: {error.reason}") from error
    several = bool(rows) and "labels" in rows[0][1]
    answer = functools.partial(_json, several=several) if config.json else _text
    if config.query is None:
        row_of = dict(zip(numbers, rows))
        output.lines(answer(text, row_of.get(number)) for number, text in enumerate(lines, 1))
        return 0
    ranked = sorted(zip(rows, texts), key=lambda pair: -pair[0][1]["score"])
    output.lines(answer(text, row) for row, text in ranked)
    return 0


def _rows(answers: Any, texts: Sequence[str]) -> List[Row]:
    """Return the prediction for each text: scores, a text, entities, or label probabilities."""
    if hasattr(answers, "rows"):
        return [([*cells, text], record) for (cells, record), text in zip(answers.rows(), texts)]
    if isinstance(answers[0], str):
        return [([output.printable(answer)], {"generated": answer}) for answer in answers]
    if not isinstance(answers, tuple):
        return [_tagged(found, text) for found, text in zip(answers, texts)]
    names, chances, *separator = answers
    return [_labelled(names, row, text, *separator) for row, text in zip(chances, texts)]


def _tagged(found: Any, text: str) -> Row:
    words = (f"{e.start}:{e.end} {e.label} {text[e.start : e.end]}" for e in found)
    return [output.printable(word.replace("\t", " ")) for word in words], {"entities": found}


def _labelled(
    names: Sequence[str], row: np.ndarray, text: str, separator: Optional[str] = None
) -> Row:
    """Return the most probable label; with a separator, all labels above 0.5."""
    chances = {name: float(f"{chance:.7g}") for name, chance in zip(names, row)}
    chosen = np.flatnonzero(row > 0.5) if separator else [int(row.argmax())]
    labels = (separator or "").join(output.printable(names[i]) for i in chosen)
    cells = [labels, (separator or "").join(f"{row[i]:.4f}" for i in chosen), text]
    if separator:
        return cells, {"labels": [names[i] for i in chosen], "probabilities": chances}
    label = names[chosen[0]]
    return cells, {"label": label, "probability": chances[label], "probabilities": chances}


def _text(text: str, row: Optional[Row]) -> str:
    return "" if row is None else "\t".join(row[0])


def _json(text: str, row: Optional[Row], several: bool = False) -> str:
    """Return a prediction as a JSON object; None = the text is blank."""
    blank = {"labels" if several else "label": None}
    record = {**(blank if row is None else row[1]), "text": text}
    line = json.dumps(record, ensure_ascii=False)
    # Output escapes control characters in a form that JSON does not have.
    return line if line.isprintable() else json.dumps(record)


def lines_of(file: Optional[str]) -> List[str]:
    """Return all lines of a file, or of standard input without one.

    Raises:
      AmpXlaError: A line is not UTF-8 text.
    """
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        print("type texts, one per line; end with Ctrl-D", file=sys.stderr)
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
