"""Options of recipes that train on texts: files and vocabulary."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.text import corpora, entities, readers, vocabulary
from amp_xla.data.text.layout import LABELLED, USUAL, Known, Layout
from amp_xla.data.text.lines import Table
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError, SettingsError
from amp_xla.process.progress import note


@dataclasses.dataclass(frozen=True)
class Files:
    """Training texts and dev texts."""

    # On resume the content of a file is compared, not its name.
    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: text<TAB>label, TSV or CSV with a header, or JSON lines, also .gz; none =
    built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in the same format; needed with --train"""
    on_bad_line: Literal["error", "skip"] = "error"
    """what to do with unusable lines: stop, or leave them out"""
    train_fraction: Annotated[float, within(above=0, at_most=1)] = 1.0
    """share of the training data to use; the seed decides which"""

    known: ClassVar[Known] = USUAL  # names of columns
    # No fields, as they have no types: separator of labels; labels are numbers; labels are classes.
    multilabel, regression, classes = None, False, True

    def built_in(self) -> Tuple[Dataset, Dataset]:
        """Return the built-in training and dev texts."""
        raise NotImplementedError

    def dataset(self, path: str, run: Optional[Layout] = None) -> Dataset:
        """Return the texts of the file ``path``.

        ``run``: the layout of the training file, if ``path`` is not the training file itself.
        """
        raise NotImplementedError

    def read(self, seed: int, **training: Any) -> Tuple[Dataset, Dataset]:
        """Return training and dev texts; the built-in ones if no files are given.

        ``seed`` decides which texts ``train_fraction`` takes. ``training`` are further arguments of
        ``dataset``, for the training file only.
        """
        train, dev = _whole(self, **training)
        _whole.cache_clear()  # it may be large
        if self.train_fraction < 1.0:
            chosen = np.random.RandomState(seed).permutation(len(train))
            train = train.take(np.sort(chosen[: max(1, int(len(train) * self.train_fraction))]))
        return train, dev

    def examples(self, path: str, run: Optional[Layout]) -> Tuple[List[str], List[str]]:
        """Return input lines for ``predict``, and the correct answers: labels or targets."""
        try:
            data = self.dataset(path, run)
        except DataError as error:
            raise DataError(error.problem) from None  # without flags of training
        note(str(data.columns))
        *texts, answers = data.fields.values()  # without labels, the second texts are targets
        return ["\t".join(map(readers.one_line, row)) for row in zip(*texts)], answers

    def questions(
        self, path: str, lines: List[str], run: Layout, single: bool = False
    ) -> Tuple[List[str], Optional[Layout]]:
        """Return ``readers.questions`` of a file; ``single``: an input is one text, not a pair."""
        # Without labels, the second texts are the targets.
        one = single or run.pair is None or run.label is None
        fields = ("text",) if one else ("text", "pair")
        return readers.questions(path, lines, run, fields, self.known)

    def count(self, **training: Any) -> int:
        """Return the number of training texts, 0 = unknown; ``training`` is as for ``read``."""
        with contextlib.suppress(DataError):  # reported when the texts are read
            # A pipe can be read only once.
            if all(path is None or os.path.isfile(path) for path in (self.train, self.dev)):
                return max(1, int(len(_whole(self, **training)[0]) * self.train_fraction))
        return 0


@functools.lru_cache(maxsize=1)  # ``count`` reads first, and then ``read``
def _whole(files: Files, **training: Any) -> Tuple[Dataset, Dataset]:
    if (files.train is None) != (files.dev is None):
        raise DataError("--train and --dev belong together: give both, or neither")
    if files.train is None or files.dev is None:
        note("reading the built-in texts from Python's library ...")
        return files.built_in()
    note(f"reading {files.train} and {files.dev} ...")
    train = files.dataset(files.train, **training)
    return train, files.dataset(files.dev, train.layout)


@dataclasses.dataclass(frozen=True)
class TextFiles(Files):
    """Training texts and dev texts."""

    needs: ClassVar[Sequence[str]] = LABELLED
    numbers: ClassVar[bool] = False  # labels are numbers

    text_field: Optional[str] = None
    """name of the text column or JSON field; none = guess"""
    pair_field: Optional[str] = None
    """name of the second text's column or field, for text pairs"""
    label_field: Optional[str] = None
    """name of the label's column or field; none = guess"""
    header: Annotated[Optional[Literal["yes", "no"]], MAY_CHANGE] = None
    """is the first line of a TSV or CSV file a header? none = detect it, and stop if unclear"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        if self.numbers:
            raise DataError(
                "--regression: give --train and --dev, because the built-in texts have no numbers"
            )
        return corpora.pydoc()

    def dataset(
        self, path: str, run: Optional[Layout] = None, needs: Optional[Sequence[str]] = None
    ) -> Dataset:
        """Return the texts of a file; ``needs`` as in ``readers.read`` (None = ``self.needs``)."""
        return readers.read(
            path, self.text_field, self.pair_field, self.label_field, self.on_bad_line,
            needs or self.needs, self.numbers, self.multilabel, header=self.header, run=run,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TaggedFiles(Files):
    """Training texts and dev texts with entities."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: token<TAB>tag lines as in CoNLL (BIO, BIOES, BMES, BILOU), or JSON lines with
    text and entities, or with tokens and ner_tags, also .gz; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in one of these formats; needed with --train"""
    on_bad_line: Literal["error", "skip"] = "error"
    """what to do with unusable lines: stop, or leave their texts out"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        return corpora.entities()

    def dataset(self, path: str, run: Optional[Layout] = None, nested: bool = True) -> Dataset:
        """Return the texts of a file; see ``entities.read``."""
        return entities.read(path, nested, self.on_bad_line)

    def questions(
        self, path: str, lines: List[str], run: Layout, single: bool = False
    ) -> Tuple[List[str], Optional[Layout]]:
        if Table.of(path, lines, []).format != "json":
            return lines, None  # each line is a text, with tabs or without
        return super().questions(path, lines, run, single)


@dataclasses.dataclass(frozen=True)
class VocabularyOptions:
    """The vocabulary."""

    vocab: Annotated[Optional[str], MAY_CHANGE] = None
    """vocab.txt; none = train a WordPiece vocabulary on the training texts"""
    vocab_size: Annotated[int, within(at_least=32)] = 8000
    """size of the vocabulary that is trained without --vocab"""
    lowercase: bool = True
    """lower-case the text and strip accents, as uncased BERT does; with --bert its folder
    sets the default"""

    def tokenizer(self, texts: Sequence[str], bert: Optional[str] = None) -> Tokenizer:
        """Return the tokenizer of folder ``bert``, of file ``vocab``, or learned from ``texts``."""
        if bert:
            return Tokenizer.of_folder(bert, self.lowercase)
        if self.vocab:
            return Tokenizer.load(self.vocab, lowercase=self.lowercase)
        note(f"learning a vocabulary from {len(texts):,} texts ...")
        return Tokenizer.train(texts, self.vocab_size, lowercase=self.lowercase)

    def defaults(self, bert: Optional[str]) -> Dict[str, Any]:
        """Return the default that ``bert`` decides, {"lowercase": ...}; {} if ``bert`` is None."""
        if bert is None:
            return {}
        if not os.path.isdir(bert):
            raise SettingsError(
                f"--bert {bert}: there is no such folder; allowed is a folder on this machine with "
                "configuration, weights and vocabulary (nothing is downloaded)"
            )
        return {"lowercase": vocabulary.rules(bert).lowercase}
