"""``amp-xla fill``: predict the masked tokens of texts with a pretrained model."""

from __future__ import annotations

import dataclasses
from typing import List, Optional

from typing_extensions import Annotated

from amp_xla.commands.predict import SavedOptions, lines_of, warn
from amp_xla.config import parse, within
from amp_xla.data.text.tokenizer import MASK
from amp_xla.errors import AmpXlaError
from amp_xla.models.options import Filling
from amp_xla.process import output


@dataclasses.dataclass(frozen=True)
class Config:
    """Fill in the masked words of a text with a pretrained model."""

    run: str = "runs/pretraining/latest"
    """run folder, as printed at the end of training"""
    text: Optional[str] = None
    """text with a [MASK] in place of each token to predict"""
    file: Optional[str] = None
    """file with one text per line, instead of --text; none = standard input"""
    top: Annotated[int, within(1, 1000)] = 5
    """number of predictions to print per [MASK]"""
    saved: SavedOptions = SavedOptions()


def main(argv: List[str]) -> int:
    """Print probability, token and completed text, separated by tabs, most likely first.

    A completed text has one [MASK] filled in; the others stay. A blank line separates two texts.
    """
    config = parse(Config, argv, "amp-xla fill RUN")
    output.require()
    if config.text is not None and config.file is not None:
        raise AmpXlaError("--text and --file exclude each other; give one of them")
    advice = "give a pretraining run: amp-xla fill runs/pretraining/latest"
    saved, recipe = config.saved.load(config.run)
    recipe.need("fill", config.run, advice)
    lines = [config.text] if config.text is not None else lines_of(config.file)
    if config.text is None:
        warn(config.file or "-", lines)
    for number, line in enumerate(lines, 1):
        if line.strip() and MASK not in line:
            raise AmpXlaError(f"line {number}, {line[:60]!r}, has no {MASK} to fill in")
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise AmpXlaError(f"the text is empty; a text with {MASK} is needed")
    answers: List[str] = []
    for text, fillings in zip(texts, recipe.call("fill", saved, texts, config.top)):
        answers += [""] * bool(answers)
        answers += [f"{f.probability:.4f}\t{f.token}\t{_with(text, f)}" for f in fillings]
    output.lines(answers)
    return 0


def _with(text: str, filling: Filling) -> str:
    """Return ``text`` with a token filled in; a ## piece joins the word before it."""
    parts = text.split(MASK)
    before, after = (MASK.join(p) for p in (parts[: filling.mask + 1], parts[filling.mask + 1 :]))
    if filling.token.startswith("##"):
        return before.rstrip() + filling.token[2:] + after
    return before + filling.token + after
