"""``amp-xla evaluate``: score runs on labelled samples, or language models on masked text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Dict, List, Optional

from typing_extensions import Annotated

from amp_xla.commands.predict import SavedOptions, lines_of
from amp_xla.config import parse, within
from amp_xla.data.pretraining.masking import MaskedTexts, Masking
from amp_xla.data.text import corpora
from amp_xla.data.text.pretrained_vocabulary import json_file
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.models.weights import pretrained
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import folder_of


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
    tokenizers = [_tokenizer(folder, config.lowercase) for folder in folders]
    if config.text_file is None:
        texts = corpora.pydoc()[1].texts
    else:
        texts = [line for line in lines_of(config.text_file) if line.strip()]
    if not texts:
        raise AmpXlaError(f"{config.text_file} has no text")
    if any(tokenizer.tokens != tokenizers[0].tokens for tokenizer in tokenizers):
        note("warning: losses of models with different vocabularies cannot be compared")
    from amp_xla.backend import configuring

    configuring.resolve(precision="fp32", xla="off")
    rows = [["model", "masked tokens", "loss", "accuracy"], ["---", "---:", "---:", "---:"]]
    for folder, tokenizer in zip(folders, tokenizers):
        masking = Masking(tokenizer, config.mask_rate, seed=config.seed)
        masked = MaskedTexts(texts[: config.texts], config.length, masking)
        means = _score(str(folder), tokenizer, config.length, masked)
        scores = [f"{means[name]:.4f}" for name in ("loss", "accuracy")]
        rows.append([str(folder), f"{masked.tokens:,}", *scores])
    output.lines(f"| {' | '.join(row)} |" for row in rows)
    return 0


def _score(
    folder: str, tokenizer: Tokenizer, length: int, masked: MaskedTexts
) -> Dict[str, float]:  # fmt: skip
    """Return the means over masked tokens of the language model in a folder."""
    from amp_xla.backend import K
    from amp_xla.models import dropout
    from amp_xla.models.language_model import LanguageModel
    from amp_xla.models.weights import google
    from amp_xla.training.evaluation import held_out

    K.clear_session()
    weights = google.pretrained(folder)
    weights.check_sizes(tokenizer.vocab_size, length)
    if not weights.has_head():
        raise AmpXlaError(f"{folder} has no head that predicts tokens, so it cannot be evaluated")
    with dropout.inference():
        language_model = LanguageModel(weights.config, length, bert=folder)
    return held_out(language_model, language_model.placeholders(), masked)()


def folders_of(names: str) -> List[Path]:
    """Return the folders in ``--run``, which commas separate.

    Raises:
      AmpXlaError: there is none.
    """
    folders = [Path(name.strip()) for name in names.split(",") if name.strip()]
    if not folders:
        raise AmpXlaError(f"--run {names!r} names no folder")
    return folders


def _tokenizer(folder: Path, lowercase: bool) -> Tokenizer:
    """Return the tokenizer of a folder of weights, or of a pretraining run with masks."""
    objective = json_file(str(folder / "config.json")).get("objective", "mlm")
    if objective != "mlm":
        raise AmpXlaError(f"{folder} was trained with --objective {objective}; mlm is needed")
    if folder_of(folder).is_dir() and not list(folder.glob("*.index")):
        raise AmpXlaError(
            f"{folder} is no run of pretraining; to score a run on labelled samples, name them "
            "with --file"
        )
    pretrained.check(str(folder))
    return Tokenizer.of_folder(str(folder), None if lowercase else False)
