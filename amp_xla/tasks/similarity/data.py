"""Pairs of texts, with labels 0 and 1 or with scores, for a cross-encoder or a bi-encoder."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text import corpora
from amp_xla.data.text.labels import Scale
from amp_xla.data.text.layout import LABELLED_PAIRS
from amp_xla.data.text.options import TextFiles
from amp_xla.data.text.readers import Dataset
from amp_xla.errors import DataError, SettingsError

Method = Literal["cross-encoder", "cosent", "simcse", "unsupervised-simcse"]
NEEDS = {"simcse": ("text", "pair"), "unsupervised-simcse": ("text",)}
POSITIVE = 0.8  # SimCSE trains on pairs with at least this scaled score: 4 if scores are 0 to 5


@dataclasses.dataclass(frozen=True)
class PairFiles(TextFiles):
    """Training pairs and dev pairs."""

    needs: ClassVar[Sequence[str]] = LABELLED_PAIRS
    numbers: ClassVar[bool] = True

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file: text<TAB>text<TAB>label (0 and 1, or scores), TSV or CSV with a header, or
    JSON lines, also .gz; unsupervised: one text per line; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file: labelled pairs in one of these formats; needed with --train"""

    def built_in(self) -> Tuple[Dataset, Dataset]:
        return corpora.pydoc_pairs()


def apart(method: Method) -> bool:
    """Return whether the texts of a pair are encoded separately; else they share a row."""
    return method != "cross-encoder"


def check(method: Method, r_drop: float, pooling: str) -> None:
    """Raise SettingsError if ``r_drop`` or ``pooling`` is set and ``method`` is a bi-encoder."""
    flags = {"--r-drop": bool(r_drop), f"--pooling {pooling}": pooling != "mean"}
    for flag in (flag for flag, given in flags.items() if given and apart(method)):
        raise SettingsError(f"{flag} excludes --method {method}; allowed: cross-encoder")


def needed(method: Method) -> Sequence[str]:
    """Return the names of the fields that a training file must have."""
    return NEEDS.get(method, LABELLED_PAIRS)


def read(method: Method, files: PairFiles, preparation: Preparation) -> Labelled:
    """Read the files, or else the built-in pairs; the result's field ``labels`` is a ``Scale``.

    The method decides which fields a training file needs, and how pairs are encoded.
    """
    train, dev = files.read(preparation.seed, needs=needed(method))
    lines = len(train)
    known = [*(train.labels or []), *(dev.labels or [])]
    scale = Scale.fit(known if method in NEEDS else train.labels or [])
    if not {*(dev.labels or [])} <= {"0", "1"}:
        scale = dataclasses.replace(scale, binary=False)
    train = _examples(method, train, scale)
    parts = train, dev
    tokenizer = preparation.vocabulary.tokenizer(train.all_texts, preparation.bert)
    together = tokenizer.encode_apart if apart(method) else tokenizer.encode
    kind = "labels 0 and 1" if scale.binary else f"scores from {scale.low:g} to {scale.high:g}"
    used = "" if len(train) == lines else f" (of {lines:,} lines)"
    return preparation.labelled(
        parts, scale, tokenizer,
        [together(part.texts, part.pairs or [], preparation.options.max_length) for part in parts],
        [
            np.ones(len(part), np.float32) if part.labels is None else scale.values(part.labels)
            for part in parts
        ],
        counts=f"{len(train):,} training{used} and {len(dev):,} dev pairs, {kind}",
    )  # fmt: skip


def _examples(method: Method, train: Dataset, scale: Scale) -> Dataset:
    """Return the training pairs of a method: all, only similar ones, or each text with itself."""
    if method == "unsupervised-simcse":
        texts = list(dict.fromkeys(train.all_texts))
        return dataclasses.replace(train, texts=texts, pairs=texts, labels=None)
    if method == "simcse" and train.labels is not None:
        similar = np.flatnonzero(scale.values(train.labels) >= POSITIVE)
        if not len(similar):
            raise DataError(
                f"--method simcse trains on similar pairs, but no training label is at least "
                f"{scale.low + POSITIVE * (scale.high - scale.low):g}"
            )
        return train.take(similar)
    return train
