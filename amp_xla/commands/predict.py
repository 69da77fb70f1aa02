"""``amp-xla predict``: labels for new text, from a file or from standard input."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any, List, Optional, Tuple

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

    def open(self, run: str, function: str, advice: str) -> Tuple[Checkpoint, Any]:
        """Return the checkpoint and a function of the recipe's module.

        Raises:
          AmpXlaError: the recipe has no such function; the message ends with ``advice``.
        """
        saved = find(Path(run), self.checkpoint)
        recipe = self.recipe or own_recipe(saved.recipe)
        found = getattr(recipe_module(recipe), function, None)
        if found is None:
            raise AmpXlaError(f"{run}: recipe {recipe} cannot {function}; {advice}")
        return saved, found


@dataclasses.dataclass(frozen=True)
class Config:
    """Label new text with a trained run."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""
    file: Optional[str] = None
    """one text per line, also gzipped; for pairs a tab before the second; none = standard input"""
    saved: SavedOptions = SavedOptions()


def main(argv: List[str]) -> int:
    """Print label, probability and text, separated by tabs.

    Line i of the output answers line i of the input; the answer to a blank line is blank.
    """
    config = parse(Config, argv, "amp-xla predict RUN FILE")
    advice = f"a classifier starts from it: amp-xla train classification --bert {config.run}"
    saved, predict = config.saved.open(config.run, "predict", advice)
    lines = lines_of(config.file)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    try:
        answers = iter(predict(saved, [lines[n - 1] for n in numbers]) if numbers else ())
    except LineError as error:
        path = called(config.file or "-")
        raise AmpXlaError(f"{path}, line {numbers[error.index]}: {error.reason}") from error
    output.lines(_answer(line, next(answers)) if line.strip() else "" for line in lines)
    return 0


def _answer(text: str, answer: Tuple[str, float]) -> str:
    label, probability = answer
    return f"{output.printable(label)}\t{probability:.4f}\t{text}"


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
