"""Option groups of recipes that train on labelled texts: the files, and how texts become tokens."""

from __future__ import annotations

import dataclasses
import os
from typing import Callable, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.text import readers
from amp_xla.data.text.dataset import Dataset
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """Texts to train and to evaluate on."""

    # A file is compared by its content when a run is resumed, not by its name.
    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: text<TAB>label, TSV with a header, or JSON lines, also .gz; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """file to evaluate on, same format; needed with --train"""
    text_field: Optional[str] = None
    """name of the text column or JSON field; none = guess"""
    pair_field: Optional[str] = None
    """name of the second text's column or field, for text pairs"""
    label_field: Optional[str] = None
    """name of the label's column or field; none = guess"""
    on_bad_line: Literal["error", "skip"] = "error"
    """what to do with a line that cannot be read: stop, or count and leave out"""
    train_fraction: Annotated[float, within(above=0, at_most=1)] = 1.0
    """share of the training data to use; picked by the seed"""

    def read(
        self, built_in: Callable[[], Tuple[Dataset, Dataset]], seed: int
    ) -> Tuple[Dataset, Dataset]:
        """(train, dev).

        Args:
          built_in: what is read where no files are given.
          seed: picks the ``train_fraction``.

        Raises:
          DataError: one file without the other, or a file cannot be read.
        """
        if (self.train is None) != (self.dev is None):
            raise DataError("--train and --dev belong together: give both, or neither")
        if self.train is None or self.dev is None:
            train, dev = built_in()
        else:
            train, dev = (
                readers.read(
                    path, text_field=self.text_field, pair_field=self.pair_field,
                    label_field=self.label_field, on_bad_line=self.on_bad_line,
                )
                for path in (self.train, self.dev)
            )  # fmt: skip
        if self.train_fraction < 1.0:
            chosen = np.random.RandomState(seed).permutation(len(train))
            train = train.take(np.sort(chosen[: max(1, int(len(train) * self.train_fraction))]))
        return train, dev


@dataclasses.dataclass(frozen=True)
class VocabularyOptions:
    """How texts become tokens."""

    vocab: Annotated[Optional[str], MAY_CHANGE] = None
    """vocab.txt to tokenize with; none = train a WordPiece vocabulary on the training texts"""
    vocab_size: Annotated[int, within(at_least=32)] = 8000
    """tokens of a vocabulary that is trained here"""
    lowercase: bool = True
    """lower-case the text and strip accents, as uncased BERT does"""

    def tokenizer(self, texts: Sequence[str], bert: Optional[str] = None) -> Tokenizer:
        """That of ``bert``'s folder, of ``vocab``, or a new one trained on ``texts``."""
        vocab = os.path.join(bert, "vocab.txt") if bert else self.vocab
        if vocab:
            return self.load(vocab)
        return Tokenizer.train(texts, self.vocab_size, lowercase=self.lowercase)

    def load(self, vocab: str) -> Tokenizer:
        """The tokenizer of a vocabulary file."""
        return Tokenizer.load(vocab, lowercase=self.lowercase)
