"""Scores of language models on masked texts. Imports no TensorFlow before the first score."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Sequence

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import json_file
from amp_xla.errors import AmpXlaError
from amp_xla.models.weights import pretrained
from amp_xla.process.progress import note
from amp_xla.tasks.pretraining.data.masking import MaskedTexts, Masking
from amp_xla.training.checkpoint import folder_of


def evaluate(
    folders: Sequence[Path],
    texts: Sequence[str],
    length: int,
    mask_rate: float,
    lowercase: bool,
    seed: int,
) -> List[List[str]]:
    """Return the scores of language models on masked texts, as a table in Markdown.

    ``folders`` are pretraining runs, or folders of weights; the other arguments are those of
    ``amp-xla evaluate``.
    """
    tokenizers = [_tokenizer(folder, lowercase) for folder in folders]
    if any(tokenizer.tokens != tokenizers[0].tokens for tokenizer in tokenizers):
        note("warning: losses of models with different vocabularies cannot be compared")
    from amp_xla.backend import configuring

    configuring.resolve(precision="fp32", xla="off")
    rows = [["model", "masked tokens", "loss", "accuracy"], ["---", "---:", "---:", "---:"]]
    for folder, tokenizer in zip(folders, tokenizers):
        masked = MaskedTexts(texts, length, Masking(tokenizer, mask_rate, seed=seed))
        means = _score(str(folder), tokenizer, length, masked)
        scores = [f"{means[name]:.4f}" for name in ("loss", "accuracy")]
        rows.append([str(folder), f"{masked.tokens:,}", *scores])
    return rows


def _score(
    folder: str, tokenizer: Tokenizer, length: int, masked: MaskedTexts
) -> Dict[str, float]:  # fmt: skip
    """Return loss and accuracy per masked token of the language model in a folder."""
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
