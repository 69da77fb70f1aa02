"""A small task of the same format that every machine has: docstrings of two packages."""

from __future__ import annotations

import collections
import re
from typing import List, Tuple

import numpy as np

from amp_xla.data.text import corpora
from amp_xla.data.text.dataset import Dataset

_WORDS = re.compile(r"[a-z0-9]+")


def two_packages() -> Tuple[bytes, bytes]:
    """(train, dev): which of two packages are two docstrings from? Lines of label and two slots.

    Both docstrings of a sample are of one package, of the two with most docstrings; their words
    stand in a slot each. Every docstring is the first of eight samples; dev has docstrings that
    training has not.
    """
    train, dev = corpora.pydoc()
    common = collections.Counter(train.labels or []).most_common(2)
    names = sorted(name for name, _ in common)
    known = _words(train, names)
    # Texts that differ in signs only are one text here.
    seen = {words for side in known for words in side}
    fresh = [[words for words in side if words not in seen] for side in _words(dev, names)]
    return _lines(known, 8), _lines(fresh, 8)


def _words(texts: Dataset, names: List[str]) -> List[List[str]]:
    """Of each package, the texts as words with spaces between them; each once."""
    found = [
        (" ".join(_WORDS.findall(text.lower())), label)
        for text, label in zip(texts.texts, texts.labels or [])
    ]
    return [list(dict.fromkeys(words for words, label in found if label == n)) for n in names]


def _lines(sides: List[List[str]], times: int) -> bytes:
    samples = []
    for label, side in enumerate(sides):
        for shift in range(1, times + 1):
            for i, words in enumerate(side):
                samples.append(f"{label}\t{words}\t{side[(i + shift * 7) % len(side)]}\n")
    order = np.random.RandomState(0).permutation(len(samples))
    return "".join(samples[i] for i in order).encode()
