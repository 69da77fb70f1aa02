"""Labelled texts for a classifier, and the weights of labels. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import List, Optional

import numpy as np

from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.data.text.labels import Labels
from amp_xla.data.text.options import TextFiles
from amp_xla.data.text.readers import split
from amp_xla.errors import DataError, SettingsError


@dataclasses.dataclass(frozen=True)
class MultiLabelTextFiles(TextFiles):
    """Training texts and dev texts."""

    multilabel: Optional[str] = None  # type: ignore[assignment]  # in place of a constant
    """separator of labels, e.g. a comma, if a text may have several; none = one label per text"""

    def __post_init__(self) -> None:
        if self.multilabel is not None and not self.multilabel.strip():
            raise SettingsError(
                f"--multilabel {self.multilabel!r}: allowed is the character between labels, such "
                "as , or |"
            )


def read(files: TextFiles, preparation: Preparation) -> Labelled:
    """Read the files, or the built-in corpus if there are none."""
    parts = train, dev = files.read(preparation.seed)
    if (train.pairs is None) != (dev.pairs is None):
        kinds = ["single texts" if part.pairs is None else "pairs of texts" for part in parts]
        raise DataError(
            f"{files.train} has {kinds[0]}, {files.dev} has {kinds[1]}; allowed: one kind"
        )
    separator = files.multilabel
    names, dev_names = (
        [[label] if separator is None else split(label, separator) for label in part.labels or []]
        for part in parts
    )
    share = files.train_fraction
    labels = Labels.fit(list(itertools.chain.from_iterable(names)))
    tokenizer = preparation.vocabulary.tokenizer(train.all_texts, preparation.bert)
    answers = [
        labels.ids([label for (label,) in part], share)
        if separator is None
        else labels.multi_hot(part, share)
        for part in (names, dev_names)
    ]
    length = preparation.options.max_length
    return preparation.labelled(
        parts, labels, tokenizer,
        [tokenizer.encode(part.texts, part.pairs, length) for part in parts], answers,
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
