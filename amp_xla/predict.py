"""``python -m amp_xla predict``: labels for new text, from a file or from standard input."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import List, Optional

from amp_xla.config import parse, recipe_module
from amp_xla.errors import AmpXlaError


@dataclasses.dataclass(frozen=True)
class Config:
    """Label new text with a trained run."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""
    file: Optional[str] = None
    """one text a line (a second text after a tab for pairs); none = standard input"""
    checkpoint: Optional[str] = None
    """name of a checkpoint in the run folder; none = best"""


def main(argv: List[str]) -> int:
    """The command: prints label, probability and text, separated by tabs, one line a text."""
    config = parse(Config, argv, "python -m amp_xla predict")
    run = Path(config.run)
    try:
        recipe = json.loads((run / "run.json").read_text("utf-8"))["recipe"]
    except (OSError, ValueError, KeyError) as error:
        raise AmpXlaError(
            f"{run} is not a run folder ({error}); a run folder is made by make train and is "
            f"named on its last lines"
        ) from error
    predict = getattr(recipe_module(recipe), "predict", None)
    if predict is None:
        raise AmpXlaError(f"recipe {recipe} has nothing to predict")
    lines = _lines(config.file)
    if not lines:
        raise AmpXlaError(f"{config.file or 'standard input'} has no text")
    for text, (label, probability) in zip(lines, predict(run, lines, config.checkpoint)):
        print(f"{label}\t{probability:.4f}\t{text}")
    return 0


def _lines(file: Optional[str]) -> List[str]:
    if file is None:
        if sys.stdin.isatty():
            print("type texts, one a line; end with Ctrl-D", file=sys.stderr)
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise AmpXlaError(f"cannot read {file}: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AmpXlaError(f"{file or 'standard input'} is not UTF-8: {error}") from error
    return [line for line in text.splitlines() if line.strip()]
