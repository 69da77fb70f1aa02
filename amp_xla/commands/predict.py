"""``amp-xla predict``: predict labels, entities, scores or texts for new text."""

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
from amp_xla.data.text.entities import TAG
from amp_xla.data.text.layout import LAYOUT, Layout
from amp_xla.data.text.lines import called, every_line
from amp_xla.errors import AmpXlaError
from amp_xla.models.options import GenerationOptions
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.recipe import own_recipe, recipe_module
from amp_xla.training.checkpoint import Checkpoint, find
from amp_xla.training.classifier import Answers
from amp_xla.training.run import ScriptFolder

# Prediction for one text: columns, and fields of a JSON object.
Row = Tuple[List[str], Dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class SavedOptions:
    """The options that choose a checkpoint of a run, and the recipe's code."""

    checkpoint: Optional[str] = None
    """name of a checkpoint in the run folder, e.g. step-00000200; none = the best"""
    recipe: Optional[str] = None
    """path of the recipe's file, if you wrote it; none = the recipe of the run"""

    def load(self, run: str) -> Tuple[Checkpoint, Any]:
        """Return the checkpoint and the recipe's module.

        Raises:
          AmpXlaError: a script trained the run, not a recipe.
        """
        saved = find(Path(run), self.checkpoint)
        if saved.recipe == ScriptFolder.RECIPE:
            raise AmpXlaError(
                f"{run}: a script trained this run by model.fit, and only the script can build its "
                f"model: predict or save there"
            )
        return saved, recipe_module(self.recipe or own_recipe(saved.recipe))

    def files(self, saved: Checkpoint) -> Tuple[Any, Optional[Layout]]:
        """Return a run's options of files, if it has any, and how its training file was read."""
        config = saved.config(recipe_module(self.recipe or own_recipe(saved.recipe)).Config)
        path = saved.path / LAYOUT
        layout = Layout.load(str(path)) if path.is_file() else None
        return getattr(config, "files", None), layout

    def open(self, run: str, function: str, advice: str) -> Tuple[Checkpoint, Any]:
        """Return the checkpoint and a function of the recipe's module.

        Raises:
          AmpXlaError: the recipe has no such function; the message ends with ``advice``.
        """
        saved, recipe = self.load(run)
        entry = getattr(recipe, function, None)
        if entry is None:
            name = self.recipe or saved.recipe
            raise AmpXlaError(f"{run}: recipe {name} cannot {function}; {advice}")
        return saved, entry


@dataclasses.dataclass(frozen=True)
class Config:
    """Label new text with a trained model."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""
    file: Optional[str] = None
    """file with one text per line, or two separated by a tab; may be gzipped; none = standard
    input"""
    json: bool = False
    """print one JSON object per line, with the probabilities of all labels, or the entities"""
    query: Optional[str] = None
    """text to compare with each line: print the most similar lines first (similarity runs only)"""
    saved: SavedOptions = SavedOptions()
    generation: GenerationOptions = GenerationOptions()


def main(argv: List[str]) -> int:
    """Print label, probability and text, separated by tabs, or with ``--json`` as JSON lines.

    Taggers print entities as ``start:end label words``, separated by tabs. Seq2seq runs print the
    generated text. Similarity runs print a score, after the label if there is one. Line i of the
    output belongs to line i of the input; a blank line gives a blank line, or a JSON object with
    the label null. Only ``--query`` changes the order: it sorts by score.
    """
    config = parse(Config, argv, "amp-xla predict RUN FILE")
    if config.query is None:
        advice = f"a classifier starts from it: amp-xla train classification --bert {config.run}"
        saved, predict = config.saved.open(config.run, "predict", advice)
    else:
        saved, rank = config.saved.open(config.run, "rank", "--query needs a similarity run")
        predict = functools.partial(rank, query=config.query)
    if "generation" in inspect.signature(predict).parameters:
        predict = functools.partial(predict, generation=config.generation)
    elif config.generation != GenerationOptions():
        raise AmpXlaError(
            f"{config.run} is a {saved.recipe} run; --beams, --top-k and the other options of text "
            f"generation need a seq2seq run"
        )
    lines = _inputs(saved, config)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    texts = [lines[number - 1] for number in numbers]
    rows: List[Row] = []
    try:
        if numbers:
            rows = _rows(predict(saved, texts), texts)
    except LineError as error:
        path = called(config.file or "-")
        raise AmpXlaError(f"{path}, line {numbers[error.index]}: {error.reason}") from error
    multi_label = bool(rows) and "labels" in rows[0][1]
    answer = functools.partial(_json, multi_label=multi_label) if config.json else _text
    if config.query is None:
        row_of = dict(zip(numbers, rows))
        output.lines(answer(text, row_of.get(number)) for number, text in enumerate(lines, 1))
        return 0
    ranked = sorted(zip(rows, texts), key=lambda pair: -pair[0][1]["score"])
    output.lines(answer(text, row) for row, text in ranked)
    return 0


def _inputs(saved: Checkpoint, config: Config) -> List[str]:
    """Return what to predict, read as the training file was; a line without it is empty."""
    if not (saved.path / LAYOUT).is_file():
        return lines_of(config.file)  # a run of an older version
    files, run = config.saved.files(saved)
    path, lines = config.file or "-", _lines(config.file)
    inputs, layout = files.questions(path, lines, run, single=config.query is not None)
    if layout is None:
        _warn(path, inputs)
    elif config.file is not None or layout.format != "json":  # evaluate writes objects
        note(str(layout))
    return inputs


def _rows(answers: Any, texts: Sequence[str]) -> List[Row]:
    """Return the prediction for each text: a text, entities, or labels and scores."""
    if isinstance(answers[0], str):
        return [([output.printable(answer)], {"generated": answer}) for answer in answers]
    if not isinstance(answers, tuple):
        return [_tagged(entities, text) for entities, text in zip(answers, texts)]
    return [_labelled(Answers(*answers), i, text) for i, text in enumerate(texts)]


def _tagged(entities: Any, text: str) -> Row:
    words = (entity.shown(text).replace("\t", " ") for entity in entities)
    return [output.printable(word) for word in words], {"entities": entities}


def _labelled(answers: Answers, number: int, text: str) -> Row:
    """Return the label, or with a separator all labels of probability > 0.5; and the score."""
    names, row, separator = answers.labels, answers.probabilities[number], answers.separator
    chances = {name: float(f"{chance:.7g}") for name, chance in zip(names, row)}
    if separator:
        chosen = np.flatnonzero(row > 0.5)
        labels = separator.join(output.printable(names[i]) for i in chosen)
        shown = separator.join(f"{row[i]:.4f}" for i in chosen)
        fields = {"labels": [names[i] for i in chosen], "probabilities": chances}
        return [labels, shown, text], fields
    cells: List[str] = []
    record: Dict[str, Any] = {}
    if names:
        label = names[int(row.argmax())]
        cells = [output.printable(label), f"{row.max():.4f}"]
        record = {"label": label, "probability": chances[label], "probabilities": chances}
    if answers.scores is not None:
        score = answers.scores[number]
        cells, record = [*cells[:1], f"{score:.4f}"], {**record, "score": float(f"{score:.7g}")}
    return [*cells, text], record


def _text(text: str, row: Optional[Row]) -> str:
    return "" if row is None else "\t".join(row[0])


def _json(text: str, row: Optional[Row], multi_label: bool = False) -> str:
    """Return a prediction as a JSON object; ``row`` is None for a blank text."""
    blank = {"labels" if multi_label else "label": None}
    record = {**(blank if row is None else row[1]), "text": text}
    line = json.dumps(record, ensure_ascii=False)
    # ``output.lines`` would escape control characters as \x1b, which is not JSON.
    return line if line.isprintable() else json.dumps(record)


def lines_of(file: Optional[str]) -> List[str]:
    """Return all lines of a file, or of standard input if ``file`` is None.

    Raises:
      AmpXlaError: a line is not UTF-8 text.
    """
    lines = _lines(file)
    _warn(file or "-", lines)
    return lines


def _lines(file: Optional[str]) -> List[str]:
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        print("type texts, one per line; end with Ctrl-D", file=sys.stderr)
    path = "-" if file is None else file
    lines, bad = every_line(path)
    if bad:
        raise AmpXlaError(
            f"{called(path)}, line {bad[0].line}: {bad[0].reason} ({len(bad):,} such lines); text "
            f"in UTF-8 is needed"
        )
    return lines


def _warn(path: str, lines: Sequence[str]) -> None:
    """Print a warning if the lines have no text, or do not look like texts."""
    texts, problem = [line for line in lines if line.strip()], ""
    if not texts:
        problem = "has no text"
    elif all(line.lstrip().startswith('{"') for line in texts):
        problem = "looks like JSON lines; each line is read as a text"
    elif all(len(line.split()) > 1 and TAG.fullmatch(line.split()[-1]) for line in texts):
        problem = "looks like tokens and tags as in CoNLL; each line is read as a text"
    if problem:
        print(f"warning: {output.printable(called(path))} {problem}", file=sys.stderr)
