"""Labelled texts as a classifier takes them: in batches of tokens, with labels by number."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

from amp_xla.data.batches.options import BatchOptions
from amp_xla.data.batches.token_dropout import TokenDropout
from amp_xla.data.text import corpora
from amp_xla.data.text.dataset import Dataset
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TextFiles, VocabularyOptions
from amp_xla.data.text.tokenizer import Encoded, Tokenizer


class Labelled(NamedTuple):
    """Texts to train and to evaluate on, and what was made of them.

    Attributes:
      labels: of the training texts.
      tokenizer: what cut both.
      batches, dev_batches: of the same shapes; tokens are hidden in the former alone.
      description: a line for the start of a run.
    """

    train: Dataset
    dev: Dataset
    labels: Labels
    tokenizer: Tokenizer
    batches: TokenDropout
    dev_batches: Any
    description: str

    @property
    def assets(self) -> Dict[str, Callable[[str], None]]:
        """File name -> what writes it to a path: what it takes to answer besides the weights."""
        return {**self.tokenizer.assets, "labels.json": self.labels.save}

    @property
    def fingerprints(self) -> Dict[str, str]:
        """By which a resumed run knows its texts."""
        return {"train": self.train.fingerprint(), "dev": self.dev.fingerprint()}


def read(
    files: TextFiles,
    vocabulary: VocabularyOptions,
    options: BatchOptions,
    bert: Optional[str],
    token_dropout: float,
    seed: int,
) -> Labelled:
    """The ``files``, or the built-in corpus where none are given.

    Args:
      bert: folder whose vocabulary cuts the texts; None = that of ``vocabulary``.
      token_dropout: share of the tokens hidden in training.
      seed: decides order, hidden tokens, and which texts are taken where not all are.

    Raises:
      DataError: a file cannot be read, or has no training text.
    """
    train, dev = files.read(corpora.pydoc, seed)
    labels = Labels.fit(train.labels or [])
    tokenizer = vocabulary.tokenizer(train.texts, bert)
    encoded, encoded_dev = (
        tokenizer.encode(part.texts, part.pairs, options.max_length) for part in (train, dev)
    )
    ids, dev_ids = (labels.ids(part.labels or []) for part in (train, dev))
    made, dev_batches = options.make(encoded, ids, encoded_dev, dev_ids, seed)
    batches = TokenDropout(made, token_dropout, tokenizer, seed)
    description = (
        f"{len(train)} training and {len(dev)} dev texts, {len(labels)} labels, "
        f"{tokenizer.vocab_size} tokens; {batches.describe()}{tokenizer.doubts(encoded)}"
    )
    return Labelled(train, dev, labels, tokenizer, batches, dev_batches, description)


def questions(lines: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Tokens of new texts, one a line: a text, or two with a tab between them.

    What a line becomes does not depend on the lines beside it.
    """
    split = [line.partition("\t") for line in lines]
    pairs = [second if tab else None for _, tab, second in split]
    return tokenizer.encode([first for first, _, _ in split], pairs, max_length)


def doubts(lines: Sequence[str], labels: Labels) -> str:
    """A warning where what would be second texts are the task's labels, in every line; or empty."""
    seconds = {line.partition("\t")[2] for line in lines}
    if not seconds <= set(labels.names):
        return ""
    return (
        f"warning: behind the tab of every line is a label, such as {min(seconds)!r}, and it is "
        "read as a second text: give the texts alone (cut -f 1)"
    )
