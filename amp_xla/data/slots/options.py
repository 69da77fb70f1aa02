"""Option group: files of samples with slots, and a built-in task in Criteo's format."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np
from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.slots.batches import block_of
from amp_xla.data.slots.lines import Lines
from amp_xla.data.text import corpora
from amp_xla.data.text.lines import Table
from amp_xla.errors import DataError

_CRITEO_NUMBERS = 13
_BUILT_IN_VALUES = 64
_WORDS = re.compile(r"[a-z0-9]+")


@dataclasses.dataclass(frozen=True)
class SlotFiles:
    """Files to train on and to evaluate on."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file in Criteo's format, also gzipped; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in the same format; needed with --train"""
    numbers: Annotated[Optional[int], within(at_least=0)] = None
    """number of columns with numbers, after the label; none = 13 as in Criteo's files, or 0 for the
    built-in data"""
    values: Annotated[Optional[int], within(at_least=1)] = None
    """maximum values per slot, separated by spaces; none = 1, or 64 for the built-in data"""

    def read(self, batch_size: int) -> Tuple[Lines, Lines, int]:
        """Return training lines, dev lines and values per slot."""
        block = block_of(batch_size)
        if (self.train is None) != (self.dev is None):
            raise DataError("--train and --dev belong together: give both, or neither")
        if self.train is None or self.dev is None:
            names = ("built-in, train", "built-in, dev")
            train, dev = (
                Lines(name, self.numbers or 0, block, text)
                for name, text in zip(names, two_packages())
            )
            return train, dev, self.values or _BUILT_IN_VALUES
        numbers = _CRITEO_NUMBERS if self.numbers is None else self.numbers
        train = Lines(self.train, numbers, block)
        return train, Lines(self.dev, numbers, block, columns=train.columns), self.values or 1

    def examples(self, path: str, _: Any = None) -> Tuple[List[str], List[str]]:
        """Return input lines for ``predict``, and their labels."""
        lines = [text for _, text in Table.read(path).rows]
        return lines, [line.partition("\t")[0] for line in lines]


def two_packages() -> Tuple[bytes, bytes]:
    """Return training and dev lines of a label and two slots, made from pairs of docstrings.

    Both docstrings of a sample belong to the same package. The two packages with most docstrings
    are used; the label says which of them it is. The words of the first docstring are the values of
    the first slot, those of the second docstring the values of the second. Each docstring comes
    first in eight samples. No docstring is both in training lines and in dev lines.
    """
    parts = []
    common = collections.Counter(corpora.pydoc()[0].labels or []).most_common(2)
    names = sorted(name for name, _ in common)
    seen: Set[str] = set()
    for texts in corpora.pydoc():
        sides: List[Dict[str, None]] = [{} for _ in names]  # texts of each package, without copies
        for text, label in zip(texts.texts, texts.labels or []):
            # Texts that differ only in punctuation are the same text here.
            words = " ".join(_WORDS.findall(text.lower()))
            if label in names and words not in seen:
                sides[names.index(label)][words] = None
        seen.update(*sides)
        parts.append(_lines([list(side) for side in sides], 8))
    return parts[0], parts[1]


def _lines(sides: List[List[str]], times: int) -> bytes:
    samples = []
    for label, side in enumerate(sides):
        for shift in range(1, times + 1):
            for i, words in enumerate(side):
                samples.append(f"{label}\t{words}\t{side[(i + shift * 7) % len(side)]}\n")
    order = np.random.RandomState(0).permutation(len(samples))
    return "".join(samples[i] for i in order).encode()
