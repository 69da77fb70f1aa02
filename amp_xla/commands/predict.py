"""``amp-xla predict``: the answers of a trained model to new text."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla.commands import OF_A_SCRIPT
from amp_xla.config import parse
from amp_xla.data.text.layout import LAYOUT, Layout
from amp_xla.data.text.lines import TAG, LineError, every_line
from amp_xla.data.text.unpacked import called
from amp_xla.errors import AmpXlaError
from amp_xla.models.options import GenerationOptions
from amp_xla.process import durable, output, regular
from amp_xla.process.progress import note
from amp_xla.training.answers import Answers, Row, checked, refuse_nan
from amp_xla.training.checkpoint import Checkpoint, find
from amp_xla.training.recipe import FunctionName, Recipe, find_recipe, own_recipe


@dataclasses.dataclass(frozen=True)
class SavedOptions:
    """The options for a checkpoint of a run, and for the file of its recipe."""

    checkpoint: Optional[str] = None
    """checkpoint of the run: best, last or a name such as step-00000200; none = best, else last"""
    recipe: Optional[str] = None
    """path of the recipe's file, if you wrote it; none = the recipe of the run"""

    def load(self, run: str) -> Tuple[Checkpoint, Recipe]:
        """Return checkpoint and recipe; raise AmpXlaError if one is missing or they do not fit."""
        saved = find(Path(run), self.checkpoint)
        if saved.of_script:
            raise AmpXlaError(f"{run}: {OF_A_SCRIPT}")
        recipe = find_recipe(self.recipe or own_recipe(saved.recipe))
        if recipe.name != saved.recipe:
            raise AmpXlaError(f"{run} was trained by recipe {saved.recipe}, not {recipe.name}")
        return saved, recipe


def files_of(saved: Checkpoint, recipe: Recipe) -> Tuple[Any, Optional[Layout]]:
    """Return a run's file options, and the layout of its training file (None if not saved)."""
    path = saved.path / LAYOUT
    layout = Layout.load(str(path)) if path.is_file() else None
    return vars(saved.config(recipe.config)).get("files"), layout


@dataclasses.dataclass(frozen=True)
class Config:
    """Label new text with a trained model."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""
    file: Optional[str] = None
    """file with one text per line, two separated by a tab, or the training file's columns; may be
    gzipped; none or - = standard input"""
    json: bool = False
    """print one JSON object per line, with more fields, such as the probabilities of all labels"""
    query: Optional[str] = None
    """text to compare with each line: print the most similar lines first (similarity runs only)"""
    vectors: Optional[str] = None
    """file.npy for the encoder's pooled vectors instead of answers, float32 [texts, hidden], in the
    order of the lines; a blank line has no row"""
    saved: SavedOptions = SavedOptions()
    generation: GenerationOptions = GenerationOptions()


def main(argv: List[str]) -> int:
    """Print the recipe's answers: columns separated by tabs, or with ``--json`` JSON lines.

    Output line i belongs to input line i, or to object i of a JSON array; a blank line gives a
    blank line, or a JSON object without an answer. Only ``--query`` sorts the lines: by score.
    """
    config = parse(Config, argv, "amp-xla predict RUN FILE")
    output.require()
    generates = config.generation != GenerationOptions()
    if config.query is not None and generates:
        raise AmpXlaError("--query excludes --beams, --top-k and the other options of generation")
    if config.vectors is not None and (generates or config.json or config.query is not None):
        raise AmpXlaError("--vectors excludes --json, --query and the options of generation")
    if config.vectors is not None:
        check_file(config.vectors)
    function: FunctionName = "predict"
    advice = "amp-xla predict needs it"
    named: Dict[str, Any] = {}
    if config.query is not None:
        function, advice = "rank", "--query needs a similarity run"
        named = {"query": config.query}
    elif config.vectors is not None:
        function, advice = "vectors", "--vectors needs a run of an encoder, such as classification"
    elif generates:
        function, named = "generate", {"generation": config.generation}
        advice = "--beams, --top-k and the other options of text generation need a seq2seq run"
    saved, recipe = config.saved.load(config.run)
    recipe.need(function, config.run, advice)
    lines = _inputs(saved, recipe, config)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    texts = [lines[number - 1] for number in numbers]
    answers = Answers([])
    try:
        if config.vectors is not None:
            return _write(Path(config.vectors), texts, lambda: recipe.call(function, saved, texts))
        if numbers:
            answers = checked(recipe.call(function, saved, texts, **named), texts)
    except LineError as error:
        path = called(config.file or "-")
        raise AmpXlaError(f"{path}, line {numbers[error.index]}: {error.reason}") from error
    row_of = dict(zip(numbers, answers.rows))
    blank: Row = ([], answers.blank)
    rows = [(row_of.get(number, blank), text) for number, text in enumerate(lines, 1)]
    if config.query is not None:
        rows = sorted(zip(answers.rows, texts), key=lambda pair: -pair[0][1]["score"])
    output.lines(_line(text, row, config.json) for row, text in rows)
    return 0


def _inputs(saved: Checkpoint, recipe: Recipe, config: Config) -> List[str]:
    """Return an input per line, parsed like the training file; "" for a line without input."""
    path, lines = config.file or "-", lines_of(config.file)
    if not (saved.path / LAYOUT).is_file():  # a run of an older version
        warn(path, lines)
        return lines
    files, run = files_of(saved, recipe)
    method = vars(saved.config(recipe.config)).get("method", "cross-encoder")
    alone = config.vectors is not None and method != "cross-encoder"
    inputs, layout = files.questions(path, lines, run, alone or config.query is not None)
    if layout is None:
        warn(path, inputs)
    elif config.file is not None or layout.format != "json":  # evaluate writes objects
        note(str(layout))
    return inputs


def check_file(path: str) -> None:
    """Raise AmpXlaError or OSError if a path cannot be written; call before a long computation."""
    folder = Path(path).parent
    if not folder.is_dir() or Path(path).is_dir():
        problem = "it is a folder" if folder.is_dir() else f"there is no folder {folder}"
        raise AmpXlaError(f"cannot write {path or '.'}: {problem}")
    regular.refuse_unwritable(folder)


def _write(path: Path, texts: Sequence[str], vectors: Callable[[], np.ndarray]) -> int:
    if not texts:
        raise AmpXlaError(f"--vectors {path}: there is no text")
    content, rows = io.BytesIO(), vectors()
    refuse_nan(rows.min())
    np.save(content, rows)
    durable.replace(path, content.getvalue())
    note(f"written: {path}: {rows.dtype} [{len(rows):,} texts, {rows.shape[1]}]")
    return 0


def _line(text: str, row: Row, as_json: bool) -> str:
    if not as_json:
        return "\t".join(row[0])
    record = {**row[1], "text": text}
    line = json.dumps(record, ensure_ascii=False)
    # ``output.lines`` would escape control characters as \x1b, which is not JSON.
    return line if line.isprintable() else json.dumps(record)


def lines_of(file: Optional[str]) -> List[str]:
    """Return all lines of a file, or of standard input if ``file`` is None or ``-``.

    Raises:
      AmpXlaError: the file cannot be read, or a line is not UTF-8 text.
    """
    path = "-" if file is None else file
    if path == "-" and sys.stdin is not None and sys.stdin.isatty():
        note("type texts, one per line; end with Ctrl-D")
    lines, bad = every_line(path)
    if bad:
        raise AmpXlaError(
            f"{called(path)}, line {bad[0].line}: {bad[0].reason} ({len(bad):,} such lines); text "
            f"in UTF-8 is needed"
        )
    return lines


def warn(path: str, lines: Sequence[str]) -> None:
    """Print a warning if the lines have no text, or do not look like texts."""
    texts, problem = [line for line in lines if line.strip()], ""
    if not texts:
        problem = "has no text"
    elif all(line.lstrip().startswith('{"') for line in texts):
        problem = "looks like JSON lines; each line is read as a text"
    elif all(len(line.split()) > 1 and TAG.fullmatch(line.split()[-1]) for line in texts):
        problem = "looks like tokens and tags as in CoNLL; each line is read as a text"
    if problem:
        note(f"warning: {called(path)} {problem}")
