"""The built-in corpus: its size and labels, without copies and without names of packages."""

from __future__ import annotations

import collections

from amp_xla.data.text import corpora


def test_texts_are_distinct_and_without_the_name_of_their_package() -> None:
    train, dev = corpora.pydoc()
    assert train.labels is not None and dev.labels is not None
    counts = collections.Counter(train.labels)
    assert len(counts) == 12 == len(set(dev.labels)) and set(dev.labels) == set(counts)
    assert 2000 < len(train) < 6000
    assert 0.10 < len(dev) / (len(train) + len(dev)) < 0.20
    assert min(counts.values()) >= 40
    assert len({*train.texts, *dev.texts}) == len(train) + len(dev)  # no copies, none across
    for side in (train, dev):
        for text, label in zip(side.texts, side.labels or []):
            assert label.lower() not in text.lower()
            assert text == " ".join(text.split()) and len(text.split()) >= corpora.MIN_WORDS
