"""The baseline of recipes/tagging.py: each word gets the label it has most often in training.

python -m benchmarks.dictionary_tagger

Words are those of the built-in texts; one that training does not have is no entity. Prints
precision, recall and F1 over the entities of the dev texts, which are all one word long.
"""

from __future__ import annotations

import collections
import re
import sys
from typing import Dict, List

from amp_xla.data import spans
from amp_xla.data.text import documented
from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.readers import Dataset
from amp_xla.process.exits import exit_code

WORD = re.compile(r"\w+")


def learn(data: Dataset) -> Dict[str, str]:
    """Return word -> its most frequent label, empty for none."""
    times: Dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for text, packed in zip(data.texts, data.labels or []):
        labels = {entity[:2]: entity.label for entity in unpack(packed)}
        for word in WORD.finditer(text):
            times[word.group()][labels.get(word.span(), "")] += 1
    return {word: counts.most_common(1)[0][0] for word, counts in times.items()}


def answer(label_of: Dict[str, str], text: str) -> List[Entity]:
    """Return the entities of a text."""
    labels = ((word, label_of.get(word.group())) for word in WORD.finditer(text))
    return [Entity(*word.span(), label) for word, label in labels if label]


def main() -> int:
    """Print the scores."""
    train, dev = documented.texts()
    label_of = learn(train)
    names = sorted(set(filter(None, label_of.values())))
    answers = [answer(label_of, text) for text in dev.texts]
    gold = [unpack(packed) for packed in dev.labels or []]
    found, wanted = (
        [[(e.start, e.end, names.index(e.label)) for e in text] for text in side]
        for side in (answers, gold)
    )
    counts = spans.counted(found, wanted, len(names))
    print({name: round(value, 4) for name, value in spans.f1(counts).items()})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
