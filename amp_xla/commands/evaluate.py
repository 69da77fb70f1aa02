"""``amp-xla evaluate``: masked language models side by side, on the same hidden words."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
from typing_extensions import Annotated

from amp_xla.commands.predict import lines_of
from amp_xla.config import parse, split_words, within
from amp_xla.data.pretraining.cloze import ClozeBenchmark
from amp_xla.data.text import corpora
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.recipe import recipe_package


@dataclasses.dataclass(frozen=True)
class Config:
    """Examine pretrained models: runs, and any folder that --bert takes."""

    run: str = "runs/pretraining/latest"
    """folders with commas between them, each a row of the table"""
    text_file: Optional[str] = None
    """texts, one a line; none = the built-in texts that neither recipe trains on"""
    texts: Annotated[int, within(at_least=1)] = 512
    """texts to hide words in, at most: the first ones"""
    pseudo: Annotated[int, within(at_least=0)] = 32
    """texts for the pseudo-perplexity, one pass for each of their words; 0 = none"""
    length: Annotated[int, within(8, 512)] = 128
    """tokens of a text, in every vocabulary; what is beyond is cut off"""
    mask_rate: Annotated[float, within(above=0, at_most=1)] = 0.15
    """share of a text's words that are hidden together"""
    lowercase: bool = True
    """for folders without a tokenizer_config.json: lower-case the text, as uncased BERT does"""
    finetune_seeds: Annotated[int, within(0, 100)] = 0
    """classifiers to fine-tune from each folder, seeds from 1; minutes each; the words behind
    another -- are that recipe's"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """decides which words are hidden"""


def main(argv: List[str]) -> int:
    """The command: a table in Markdown, one row a folder.

    Loss (nats) and accuracy are of words, a word with all its pieces; words that one of the
    vocabularies cannot spell are asked of no model. So rows of a table can be compared, and rows of
    tables with other folders beside them only where these have the same vocabulary.
    """
    own, recipe_words = split_words(argv)
    config = parse(Config, own, "amp-xla evaluate RUN")
    folders = [name.strip() for name in config.run.split(",") if name.strip()]
    if not folders:
        raise AmpXlaError(f"--run {config.run!r} names no folder")
    if recipe_words and not config.finetune_seeds:
        raise AmpXlaError(
            f"{recipe_words[0]!r} is for a fine-tuning, and there is none: give --finetune-seeds 3"
        )
    tokenizers = [_tokenizer(folder, config.lowercase) for folder in folders]
    if config.text_file is None:
        texts = corpora.pydoc()[1].texts
    else:
        texts = [line for line in lines_of(config.text_file) if line.strip()]
    texts = texts[: config.texts]
    benchmark = ClozeBenchmark.of(texts, tokenizers, config.length)
    note(
        f"{len(benchmark.texts):,} of {len(texts):,} texts; {benchmark.unknown:.1%} of their words "
        f"are not asked for: {'the' if len(folders) == 1 else 'some'} vocabulary cannot spell them"
    )
    # Before this process takes the GPU's memory.
    tuned = [_fine_tuned(folder, config.finetune_seeds, recipe_words) for folder in folders]

    from amp_xla.backend import configuring

    configuring.resolve(precision="fp32", xla="off")
    from amp_xla.models.scoring import Scorer

    rows = []
    for folder, tokenizer, found in zip(folders, tokenizers, tuned):
        scorer = Scorer(folder, tokenizer.vocab_size, config.length)
        score = scorer(benchmark.together(tokenizer, config.mask_rate, config.seed))
        row = [folder, f"{score.words:,}", f"{score.loss:.4f}", f"{score.accuracy:.4f}"]
        if config.pseudo:
            alone = scorer(benchmark.one_by_one(tokenizer, config.pseudo))
            row.append(f"{math.exp(min(alone.loss, 50.0)):.2f}")
        rows.append(row + ([_spread(found)] if found else []))
    head = ["model", "hidden words", "loss", "accuracy"]
    head += ["pseudo-perplexity"] * bool(config.pseudo)
    head += [f"fine-tuned, dev accuracy of {config.finetune_seeds}"] * bool(config.finetune_seeds)
    rule = ["---", *["---:"] * (len(head) - 1)]
    output.lines(f"| {' | '.join(row)} |" for row in [head, rule, *rows])
    return 0


def _tokenizer(folder: str, lowercase: bool) -> Tokenizer:
    """That of a folder, its vocabulary compared with its configuration before anything is slow."""
    path = Path(folder)
    if not path.is_dir():
        raise AmpXlaError(f"there is no folder {folder}")
    if not (path / "bert_config.json").is_file() or not list(path.glob("*.index")):
        raise AmpXlaError(
            f"{folder} holds no bert_config.json with a checkpoint (*.index); the folder of a "
            f"pretraining has them, and so has a BERT in Google's format"
        )
    try:
        written = json.loads((path / "config.json").read_text(encoding="utf-8"))
        objective = written.get("objective", "mlm")
    except (OSError, ValueError, AttributeError):
        objective = "mlm"  # another's folder
    if objective != "mlm":
        raise AmpXlaError(f"{folder} was trained with --objective {objective}: it fills in no mask")
    try:
        settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
        lowercase = bool(settings.get("do_lower_case", lowercase))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError) as error:
        raise AmpXlaError(f"cannot read {path / 'tokenizer_config.json'}: {error}") from None
    tokenizer = Tokenizer.load(str(path / "vocab.txt"), lowercase)
    tokenizer.mask_id  # noqa: B018  # raises where there is none
    try:
        wanted = json.loads((path / "bert_config.json").read_bytes().decode("utf-8-sig"))
        wanted = wanted["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AmpXlaError(
            f"cannot read vocab_size in {path / 'bert_config.json'}: {error!r}"
        ) from None
    if wanted != tokenizer.vocab_size:
        raise AmpXlaError(
            f"{path / 'bert_config.json'} has vocab_size {wanted}, vocab.txt "
            f"{tokenizer.vocab_size} tokens; take the one that came with it"
        )
    return tokenizer


def _fine_tuned(folder: str, seeds: int, words: Sequence[str]) -> List[float]:
    """Best dev accuracy of each seed's classification run, which stays in runs/."""
    found = []
    for seed in range(1, seeds + 1):
        name = f"evaluate-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{seed}"
        note(f"fine-tuning from {folder}, seed {seed} of {seeds}: runs/classification/{name}")
        given = ["--bert", folder, "--seed", str(seed), "--name", name, *words]
        done = subprocess.run(
            [sys.executable, "-m", f"{recipe_package()}.classification", *given],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            said = done.stdout.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            raise AmpXlaError(f"fine-tuning from {folder} ended with {done.returncode}: {said[-1]}")
        path = Path("runs") / "classification" / name / "metrics.jsonl"
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        found.append(max(line["dev_accuracy"] for line in lines if "dev_accuracy" in line))
    return found


def _spread(found: Sequence[float]) -> str:
    mean = f"{np.mean(found):.4f}"
    return mean + (f" ± {np.std(found, ddof=1):.4f}" if len(found) > 1 else "")
