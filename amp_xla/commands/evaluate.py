"""``amp-xla evaluate``: score runs on labelled samples, or language models on masked text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Optional

from typing_extensions import Annotated

from amp_xla.commands.predict import SavedOptions, lines_of
from amp_xla.config import parse, within
from amp_xla.data.text import corpora
from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.recipe import recipe_module


@dataclasses.dataclass(frozen=True)
class Config:
    """Score runs on labelled samples (--file), or pretrained models on masked text."""

    run: str = "runs/pretraining/latest"
    """run folders, separated by commas; for masked text also folders of weights, as for --bert"""
    file: Optional[str] = None
    """labelled samples in the format of the training file; none = score masked text instead"""
    errors: Annotated[int, within(at_least=0)] = 100
    """with --file: maximum number of lines in errors.tsv, worst first"""
    json: bool = False
    """with --file: print JSON"""
    saved: SavedOptions = SavedOptions()
    text_file: Optional[str] = None
    """texts, one per line; none = built-in texts that no recipe trains on"""
    texts: Annotated[int, within(at_least=1)] = 512
    """number of texts to use, from the start of the file"""
    length: Annotated[int, within(8, 512)] = 128
    """maximum tokens per text; longer texts are cut"""
    mask_rate: Annotated[float, within(above=0, at_most=0.5)] = 0.15
    """share of the tokens to predict; words are masked whole"""
    lowercase: bool = True
    """lower-case the text, unless the folder's settings forbid it; --no-lowercase = never"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed for the masks, or for the bootstrap"""


def main(argv: List[str]) -> int:
    """Print the scores on labelled samples, or a table in Markdown with a row per folder.

    In the table, loss (nats) and accuracy are per masked token, as in training. So only models with
    the same vocabulary can be compared.
    """
    config = parse(Config, argv, "amp-xla evaluate RUN")
    folders = folders_of(config.run)
    if config.file is not None:
        from amp_xla.commands.score import score

        seed, errors = config.seed, config.errors
        return score(folders, config.file, config.saved, seed, errors, config.json)
    if config.text_file is None:
        texts = corpora.pydoc()[1].texts
    else:
        texts = [line for line in lines_of(config.text_file) if line.strip()]
    if not texts:
        raise AmpXlaError(f"{config.text_file} has no text")
    table = recipe_module("pretraining").evaluate(
        folders, texts[: config.texts], config.length, config.mask_rate, config.lowercase,
        config.seed,
    )  # fmt: skip
    output.lines(f"| {' | '.join(row)} |" for row in table)
    return 0


def folders_of(names: str) -> List[Path]:
    """Return the folders in ``--run``, which commas separate.

    Raises:
      AmpXlaError: there is none.
    """
    folders = [Path(name.strip()) for name in names.split(",") if name.strip()]
    if not folders:
        raise AmpXlaError(f"--run {names!r} names no folder")
    return folders
