"""Options of recipes that train on labelled texts: the files, and the vocabulary."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.text import corpora, documented, entities, pretrained_vocabulary, readers
from amp_xla.data.text.lines import count
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError, SettingsError


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """Training texts and dev texts."""

    needs: ClassVar[Sequence[str]] = readers.LABELLED
    numbers: ClassVar[bool] = False  # labels are numbers

    # On resume the content of a file is compared, not its name.
    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: text<TAB>label, TSV with a header, or JSON lines, also .gz; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in the same format; needed with --train"""
    text_field: Optional[str] = None
    """name of the text column or JSON field; none = guess"""
    pair_field: Optional[str] = None
    """name of the second text's column or field, for text pairs"""
    label_field: Optional[str] = None
    """name of the label's column or field; none = guess"""
    on_bad_line: Literal["error", "skip"] = "error"
    """for unusable lines: stop, or leave them out"""
    train_fraction: Annotated[float, within(above=0, at_most=1)] = 1.0
    """share of the training data to use; the seed decides which"""

    @property
    def separator(self) -> Optional[str]:
        """Text between the labels of a sample; None = each has one label."""
        return None

    def read(self, seed: int, needs: Optional[Sequence[str]] = None) -> Tuple[Dataset, Dataset]:
        """Return training and dev texts, of the built-in corpus if no files are given.

        Args:
          seed: decides which ``train_fraction``.
          needs: fields of a training sample; see ``readers.read``; None = those of a dev sample.

        Raises:
          DataError: Only one file is given, or a file cannot be read.
        """
        read = functools.partial(self.dataset, needs=needs)
        return _both(self, self.built_in, read, self.dataset, seed)

    def built_in(self) -> Tuple[Dataset, Dataset]:
        """Return the training and dev texts that every machine has."""
        return corpora.pydoc()

    def dataset(self, path: str, needs: Optional[Sequence[str]] = None) -> Dataset:
        """Return the texts of a file with the same fields.

        Args:
          path: the file.
          needs: fields of a sample; see ``readers.read``; None = those of the class.

        Raises:
          DataError: The file cannot be read.
        """
        return readers.read(
            path, text_field=self.text_field, pair_field=self.pair_field,
            label_field=self.label_field, on_bad_line=self.on_bad_line, separator=self.separator,
            needs=needs or self.needs, numbers=self.numbers,
        )  # fmt: skip

    def examples(self, path: str) -> Tuple[List[str], List[str]]:
        """Return the lines that ``predict`` answers, and their labels.

        Raises:
          DataError: The file cannot be read.
        """
        data = self.dataset(path)
        columns = [[re.sub(r"[\t\r\n]", " ", text) for text in data.texts]]
        if data.pairs is not None:
            columns.append([re.sub(r"[\t\r\n]", " ", text) for text in data.pairs])
        return ["\t".join(parts) for parts in zip(*columns)], data.labels or []

    def count(self) -> int:
        """Return about how many training texts there are, 0 = unknown."""
        texts = len(self.built_in()[0]) if self.train is None else count(self.train)
        return int(texts * self.train_fraction)


@dataclasses.dataclass(frozen=True)
class MultiLabelTextFiles(TextFiles):
    """Training texts and dev texts."""

    multilabel: Optional[str] = None
    """text between labels, e.g. a comma: a text then has any number of them; none = one label"""

    def __post_init__(self) -> None:
        if self.multilabel is not None and (not self.multilabel.strip()):
            raise SettingsError(
                f"--multilabel {self.multilabel!r}: allowed is a separator of labels, such as "
                ", or |"
            )

    @property
    def separator(self) -> Optional[str]:
        return self.multilabel


@dataclasses.dataclass(frozen=True)
class TaggedFiles:
    """Training texts and dev texts with entities."""

    # On resume the content of a file is compared, not its name.
    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: token<TAB>tag lines as in CoNLL (BIO, BIOES, BMES), or JSON lines with text
    and entities, also .gz; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in one of these formats; needed with --train"""
    on_bad_line: Literal["error", "skip"] = "error"
    """for unusable lines: stop, or leave their texts out"""
    train_fraction: Annotated[float, within(above=0, at_most=1)] = 1.0
    """share of the training data to use; the seed decides which"""

    def read(self, seed: int, nested: bool) -> Tuple[Dataset, Dataset]:
        """Return training and dev texts, of the built-in corpus if no files are given.

        Args:
          seed: decides which ``train_fraction``.
          nested: False = entities that overlap are an error.

        Raises:
          DataError: Only one file is given, or a file cannot be read.
        """
        read = functools.partial(self.dataset, nested=nested)
        return _both(self, documented.texts, read, read, seed)

    def dataset(self, path: str, nested: bool = True) -> Dataset:
        """Return the texts of a file; see ``entities.read``."""
        return entities.read(path, nested, self.on_bad_line)

    def examples(self, path: str) -> Tuple[List[str], List[str]]:
        """Return the lines that ``predict`` answers, and their entities as JSON.

        Raises:
          DataError: The file cannot be read.
        """
        data = self.dataset(path)
        return [re.sub(r"[\r\n]", " ", text) for text in data.texts], data.labels or []

    def count(self) -> int:
        """Return about how many training texts there are, 0 = unknown."""
        texts = len(documented.texts()[0]) if self.train is None else entities.count(self.train)
        return int(texts * self.train_fraction)


@dataclasses.dataclass(frozen=True)
class TargetFiles:
    """Training texts and dev texts with a target each."""

    # On resume the content of a file is compared, not its name.
    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: source<TAB>target, TSV with a header, or JSON lines, also .gz; none =
    built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in the same format; needed with --train"""
    text_field: Optional[str] = None
    """name of the source's column or JSON field; none = guess"""
    pair_field: Optional[str] = None
    """name of the target's column or JSON field; none = guess"""
    on_bad_line: Literal["error", "skip"] = "error"
    """for unusable lines: stop, or leave them out"""
    train_fraction: Annotated[float, within(above=0, at_most=1)] = 1.0
    """share of the training data to use; the seed decides which"""

    def read(self, seed: int) -> Tuple[Dataset, Dataset]:
        """Return training and dev texts, of the built-in corpus if no files are given.

        Args:
          seed: decides which ``train_fraction``.

        Raises:
          DataError: Only one file is given, or a file cannot be read.
        """
        return _both(self, documented.names, self.dataset, self.dataset, seed)

    def dataset(self, path: str) -> Dataset:
        """Return the texts of a file, with their targets as ``pairs``."""
        data = readers.read(
            path, text_field=self.text_field, pair_field=self.pair_field,
            on_bad_line=self.on_bad_line, needs=("text", "pair"), targets=True,
        )  # fmt: skip
        return dataclasses.replace(data, labels=None)  # a third column

    def examples(self, path: str) -> Tuple[List[str], List[str]]:
        """Return the lines that ``predict`` answers, and their targets."""
        data = self.dataset(path)
        return [re.sub(r"[\t\r\n]", " ", text) for text in data.texts], data.pairs or []

    def count(self) -> int:
        """Return about how many training texts there are, 0 = unknown."""
        texts = len(documented.names()[0]) if self.train is None else count(self.train)
        return int(texts * self.train_fraction)


def _both(
    files: Any, built_in: Callable[[], Tuple[Dataset, Dataset]], read: Callable[[str], Dataset],
    read_dev: Callable[[str], Dataset], seed: int,
) -> Tuple[Dataset, Dataset]:  # fmt: skip
    """Return training and dev texts of two files, or of a built-in corpus."""
    if (files.train is None) != (files.dev is None):
        raise DataError("--train and --dev belong together: give both, or neither")
    if files.train is None or files.dev is None:
        train, dev = built_in()
    else:
        train, dev = read(files.train), read_dev(files.dev)
    if files.train_fraction < 1.0:
        chosen = np.random.RandomState(seed).permutation(len(train))
        train = train.take(np.sort(chosen[: max(1, int(len(train) * files.train_fraction))]))
    return train, dev


@dataclasses.dataclass(frozen=True)
class PairFiles(TextFiles):
    """Training pairs and dev pairs."""

    needs: ClassVar[Sequence[str]] = readers.LABELLED_PAIRS
    numbers: ClassVar[bool] = True

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: text<TAB>text<TAB>label (0 and 1, or scores), TSV with a header, or JSON
    lines, also .gz; unsupervised: one text per line; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file: labelled pairs in one of these formats; needed with --train"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        """Return the training and dev pairs that every machine has."""
        return corpora.pydoc_pairs()


@dataclasses.dataclass(frozen=True)
class VocabularyOptions:
    """The vocabulary."""

    vocab: Annotated[Optional[str], MAY_CHANGE] = None
    """vocab.txt; none = train a WordPiece vocabulary on the training texts"""
    vocab_size: Annotated[int, within(at_least=32)] = 8000
    """size of the vocabulary that is trained without --vocab"""
    lowercase: bool = True
    """lower-case the text and strip accents, as uncased BERT (with --bert: as its folder says)"""

    def tokenizer(self, texts: Sequence[str], bert: Optional[str] = None) -> Tokenizer:
        """Return the tokenizer of ``bert``'s folder, of ``vocab``, or one trained on ``texts``."""
        if bert:
            return Tokenizer.of_folder(bert, self.lowercase)
        if self.vocab:
            return Tokenizer.load(self.vocab, lowercase=self.lowercase)
        return Tokenizer.train(texts, self.vocab_size, lowercase=self.lowercase)

    def defaults(self, bert: Optional[str]) -> Dict[str, Any]:
        """Return the settings that the folder of ``bert`` replaces: whether to lower-case."""
        return {"lowercase": pretrained_vocabulary.rules(bert).lowercase} if bert else {}
