"""Labelled texts for a classifier, and the weights of labels. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.labels import MANY_NUMBERS, Labels, Scale, as_number, many_numbers, several
from amp_xla.data.text.options import TextFiles
from amp_xla.data.text.readers import split
from amp_xla.errors import DataError, SettingsError


@dataclasses.dataclass(frozen=True)
class MultiLabelTextFiles(TextFiles):
    """Training texts and dev texts."""

    multilabel: Optional[str] = None  # type: ignore[assignment]  # in place of a constant
    """separator of labels, e.g. a comma, if a text may have several; none = one label per text"""

    regression: bool = False
    """labels are numbers: predict a number per text"""
    classes: Annotated[bool, MAY_CHANGE] = False
    """labels are names of classes, also if they are many different numbers"""

    @property
    def monitor(self) -> str:
        """Dev metric that decides which checkpoint is best."""
        several = "accuracy" if self.multilabel is None else "micro_f1"
        return "spearman" if self.regression else several

    @property
    def numbers(self) -> bool:  # type: ignore[override]  # in place of a constant
        return self.regression

    def __post_init__(self) -> None:
        if self.regression and (self.multilabel is not None or self.classes):
            raise SettingsError("--regression excludes --multilabel and --classes")
        if self.multilabel is not None and not self.multilabel.strip():
            raise SettingsError(
                f"--multilabel {self.multilabel!r}: allowed is the character between labels, such "
                'as "," or "|"'
            )


def read(files: TextFiles, preparation: Preparation) -> Labelled:
    """Read the files, or the built-in corpus if there are none."""
    parts = train, dev = files.read(preparation.seed)
    if (train.pairs is None) != (dev.pairs is None):
        kinds = ["single texts" if part.pairs is None else "pairs of texts" for part in parts]
        raise DataError(
            f"{files.train} has {kinds[0]}, {files.dev} has {kinds[1]}; both need the same kind"
        )
    labels, answers, kind, warnings = _targets(files, [part.labels or [] for part in parts])
    tokenizer = preparation.vocabulary.tokenizer(train.all_texts, preparation.bert)
    limits = preparation.options.max_length, preparation.options.stride
    return preparation.labelled(
        parts, labels, tokenizer,
        [tokenizer.encode(part.texts, part.pairs, *limits) for part in parts], answers,
        counts=f"{len(train):,} training and {len(dev):,} dev texts, {kind}", warnings=warnings,
        ids=answers[0],
    )  # fmt: skip


def _targets(files: Any, given: Sequence[List[str]]) -> Tuple[Any, List[np.ndarray], str, str]:
    """Return ``Labels`` or ``Scale``; two arrays of labels; a description; and warnings.

    ``given`` are the labels of the training texts and of the dev texts. ``DataError`` is raised if
    training labels are many numbers or fractions, without --regression, --classes and --multilabel.
    """
    names = sorted(set(given[0]))
    many = many_numbers(names) if files.multilabel is None else None
    line = ""
    if many is False and len(names) > 2 and not files.classes:
        meaning = "classes; --regression predicts a number instead"
        if files.regression:
            meaning = "numbers; without --regression they are classes"
        line = f"\nlabels: {len(names)} different whole numbers, read as {meaning}"
    if files.regression:
        scale = Scale.fit(given[0])
        kind = f"numbers from {scale.low:g} to {scale.high:g}"
        return scale, list(map(scale.values, given)), kind, line
    if many and not files.classes:
        form = " (a point before decimals)" * any(math.isnan(as_number(name)) for name in names)
        hint = several(names)
        raise DataError(
            f"training data: the labels are {len(names):,} different numbers"
            f"{', some with decimals, separators or %' * (len(names) <= MANY_NUMBERS)}, such as "
            f"{names[0]} and {names[-1]}; give --regression to predict a number{form}, or "
            f"--classes to predict one of {len(names):,} classes{hint and f'; {hint}'}"
        )
    separator, share = files.multilabel, files.train_fraction
    parts = [[[x] if separator is None else split(x, separator) for x in part] for part in given]
    each, dev_names = (list(itertools.chain.from_iterable(part)) for part in parts)
    labels = Labels.fit(each)
    if separator is None:
        answers = [labels.ids(part, share) for part in (each, dev_names)]
    else:
        answers = [labels.multi_hot(part, share) for part in parts]
    return labels, answers, f"{len(labels)} labels", line + labels.warnings(dev_names)


def class_weights(spec: Optional[str], labels: Labels, ids: np.ndarray) -> Optional[List[float]]:
    """Return the weight of each label in the loss; None = all equal.

    Args:
      spec: ``balanced`` or weights such as ``spam=5,ham=0.5``, where labels without a weight get 1.
        A balanced weight is number of texts / (number of labels * number of texts with this label);
        its mean over all texts is 1.
      labels: labels of the training texts.
      ids: label of each training text, int [texts].

    Raises:
      SettingsError: a label is unknown, or a weight is not a finite number above 0.
    """
    if spec is None:
        return None
    if spec == "balanced":
        counts = np.bincount(ids, minlength=len(labels))
        return [float(x) for x in len(ids) / (len(labels) * np.maximum(counts, 1.0))]
    weights: Dict[str, float] = {}
    # A label may contain commas, so only a comma after a weight ends a pair.
    for pair in re.sub("(=[^,=]*),", r"\1\0", spec).split("\0"):
        name, _, number = pair.rpartition("=")
        weight = as_number(number)
        if name not in labels.names or name in weights or not 0.0 < weight < math.inf:
            raise SettingsError(
                f"--class-weights: found {pair[:60]!r}; allowed: balanced, or labels, each once, "
                f"with weights above 0, such as {labels.names[0]}=2,{labels.names[1]}=0.5"
            )
        weights[name] = weight
    return [weights.get(name, 1.0) for name in labels.names]
