"""A built-in task in Criteo's format: docstrings of two packages of Python's library."""

from __future__ import annotations

import collections
import re
from typing import List, Tuple

import numpy as np

from amp_xla.data.text import corpora
from amp_xla.data.text.dataset import Dataset

_WORDS = re.compile(r"[a-z0-9]+")


def two_packages() -> Tuple[bytes, bytes]:
    """Return training and dev lines of a label and two slots: from which package are two texts?

    Both docstrings of a sample belong to one of the two packages with most docstrings; the words of
    each are one slot. Each docstring is the first of eight samples; no docstring is in both parts.
    """
    train, dev = corpora.pydoc()
    common = collections.Counter(train.labels or []).most_common(2)
    names = sorted(name for name, _ in common)
    known = _words(train, names)
    # Texts that differ only in punctuation are the same text here.
    seen = {words for side in known for words in side}
    fresh = [[words for words in side if words not in seen] for side in _words(dev, names)]
    return _lines(known, 8), _lines(fresh, 8)


def _words(texts: Dataset, names: List[str]) -> List[List[str]]:
    """Return the words of each package's texts, each text once."""
    labelled = [
        (" ".join(_WORDS.findall(text.lower())), label)
        for text, label in zip(texts.texts, texts.labels or [])
    ]
    return [list(dict.fromkeys(words for words, label in labelled if label == n)) for n in names]


def _lines(sides: List[List[str]], times: int) -> bytes:
    samples = []
    for label, side in enumerate(sides):
        for shift in range(1, times + 1):
            for i, words in enumerate(side):
                samples.append(f"{label}\t{words}\t{side[(i + shift * 7) % len(side)]}\n")
    order = np.random.RandomState(0).permutation(len(samples))
    return "".join(samples[i] for i in order).encode()
