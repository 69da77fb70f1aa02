"""Labelled texts for a classifier: batches of tokens, and labels by number."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import Batch, MappedBatches
from amp_xla.data.batches.token_dropout import token_dropout
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.layout import LAYOUT
from amp_xla.data.text.options import Files, VocabularyOptions
from amp_xla.data.text.readers import Dataset, split
from amp_xla.data.text.tokenizer import Encoded, Tokenizer
from amp_xla.errors import DataError, SettingsError


class Labelled(NamedTuple):
    """Training and dev texts, and their batches.

    Attributes:
      labels: ``Labels`` of the training texts, or the ``Scale`` of pairs.
      batches, dev_batches: batches in the same shapes; token dropout only in training.
      description: text to print when a run starts, with warnings.
      ids: label of each training text, int [texts]; multi-label: 0 or 1, [texts, labels].
      placed: the tagger's dev texts, as ``Placed``.
    """

    train: Dataset
    dev: Dataset
    labels: Any
    tokenizer: Tokenizer
    batches: Any
    dev_batches: Any
    description: str
    ids: Any = None
    placed: Any = None

    @property
    def assets(self) -> Dict[str, bytes]:
        """File name -> content of the files needed for prediction."""
        files = {} if self.labels is None else {"labels.json": self.labels.encoded()}
        # Training of unsupervised SimCSE reads single texts, but its dev file has pairs.
        layout = max((self.train.columns, self.dev.columns), key=lambda each: len(each.places))
        return {**self.tokenizer.assets, **files, LAYOUT: layout.encoded()}

    @property
    def fingerprints(self) -> Dict[str, str]:
        """Hashes of the data, which must be the same when a run is resumed."""
        return {"train": self.train.fingerprint(), "dev": self.dev.fingerprint()}


class Preparation(NamedTuple):
    """The settings that turn texts into batches.

    Attributes:
      vocabulary: options of the vocabulary.
      options: ``BatchOptions``.
      bert: folder whose vocabulary is used; None = use ``vocabulary``.
      token_dropout: share of the tokens hidden in training.
      seed: decides the order, the hidden tokens, and which texts ``train_fraction`` takes.
    """

    vocabulary: VocabularyOptions
    options: Any
    bert: Optional[str]
    token_dropout: float
    seed: int

    def labelled(
        self,
        parts: Tuple[Dataset, Dataset],
        labels: Any,
        tokenizer: Tokenizer,
        encoded: Sequence[Encoded],
        answers: Sequence[Any] = (None, None),
        changes: Sequence[Callable[..., Batch]] = (),
        counts: str = "",
        warnings: str = "",
        **others: Any,
    ) -> Labelled:
        """Return texts with their batches.

        ``parts``, ``encoded``, ``answers`` and ``changes`` each have two elements: the first for
        the training texts, the second for the dev texts.

        Args:
          parts: the texts.
          labels, tokenizer, others: attributes of ``Labelled``.
          encoded: tokens of the texts.
          answers: numbers of the labels, as arrays.
          changes: functions (batch, epoch, step) -> batch, applied to every batch.
          counts, warnings: first and last part of the description.
        """
        train, dev = parts
        batches, dev_batches = self.options.make(*encoded, *answers, self.seed)
        if changes:
            batches, dev_batches = map(MappedBatches, (batches, dev_batches), changes)
        batches = token_dropout(batches, self.token_dropout, tokenizer, self.seed)
        description = (
            f"{_columns(train, dev)}{counts}, {tokenizer.vocab_size} tokens; {batches.describe()}"
            f"{train.warnings()}{dev.warnings()}{tokenizer.warnings(encoded[0])}{warnings}"
        )
        return Labelled(
            train, dev, labels, tokenizer, batches, dev_batches, description, **others
        )  # fmt: skip


def _columns(train: Dataset, dev: Dataset) -> str:
    """Return how the training file was read, and the dev file if it has other columns."""
    lines = dict.fromkeys(str(part.layout) for part in (train, dev) if part.layout is not None)
    return "".join(f"{name}{line}\n" for name, line in zip(("", "dev "), lines))


def read(files: Files, how: Preparation) -> Labelled:
    """Read the files, or the built-in corpus if there are none."""
    parts = train, dev = files.read(how.seed)
    if (train.pairs is None) != (dev.pairs is None):
        kinds = ["single texts" if part.pairs is None else "pairs of texts" for part in parts]
        raise DataError(
            f"{files.train} has {kinds[0]}, {files.dev} has {kinds[1]}; allowed: one kind"
        )
    separator = files.separator
    names, dev_names = (
        [[label] if separator is None else split(label, separator) for label in part.labels or []]
        for part in parts
    )
    share = files.train_fraction
    labels = Labels.fit(list(itertools.chain.from_iterable(names)))
    tokenizer = how.vocabulary.tokenizer(train.all_texts, how.bert)
    answers = [
        labels.ids([label for (label,) in part], share)
        if separator is None
        else labels.multi_hot(part, share)
        for part in (names, dev_names)
    ]
    return how.labelled(
        parts, labels, tokenizer,
        [tokenizer.encode(part.texts, part.pairs, how.options.max_length) for part in parts],
        answers,
        counts=f"{len(train)} training and {len(dev)} dev texts, {len(labels)} labels",
        warnings=labels.warnings(list(itertools.chain.from_iterable(dev_names))), ids=answers[0],
    )  # fmt: skip


def class_weights(spec: Optional[str], labels: Labels, ids: np.ndarray) -> Optional[List[float]]:
    """Return the weight of each label in the loss; None = all equal.

    Args:
      spec: ``balanced``: texts / (labels * texts with this label), so that the mean over all texts
        is 1. Or weights such as ``spam=5,ham=0.5``; other labels have weight 1.
      labels: labels of the training texts.
      ids: label of each training text, int [texts].

    Raises:
      SettingsError: an unknown label, or no weight above 0.
    """
    if spec is None:
        return None
    if spec == "balanced":
        counts = np.bincount(ids, minlength=len(labels))
        return [float(x) for x in len(ids) / (len(labels) * np.maximum(counts, 1.0))]
    weights = dict.fromkeys(labels.names, 1.0)
    for pair in spec.split(","):
        name, _, number = pair.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if name not in weights or not 0.0 < weight < math.inf:
            raise SettingsError(
                f"--class-weights: found {pair[:60]!r}; allowed: balanced, or labels with weights "
                f"above 0, such as {labels.names[0]}=2,{labels.names[1]}=0.5"
            )
        weights[name] = weight
    return list(weights.values())


def questions(lines: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Return the tokens of lines to predict; a line is a text, or two texts separated by a tab.

    The tokens of a line do not depend on other lines.
    """
    split = [line.partition("\t") for line in lines]
    pairs = [second if tab else None for _, tab, second in split]
    return tokenizer.encode([first for first, _, _ in split], pairs, max_length)
