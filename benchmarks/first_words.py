"""The baseline of recipes/seq2seq.py: the first words of a text are its target.

    python -m benchmarks.first_words --words 3

Prints the mean ROUGE-L of the built-in dev texts, and that of a second baseline: the target of the
training text that has most words in common.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import sys
from typing import Dict, List, Set

from typing_extensions import Annotated

from amp_xla.config import parse, within
from amp_xla.data.text.options import TargetFiles
from amp_xla.process.exits import exit_code
from amp_xla.report.texts import rouge_l, words


@dataclasses.dataclass(frozen=True)
class Config:
    """Score the dev texts without a model."""

    words: Annotated[int, within(at_least=1)] = 3
    """words to copy"""
    files: TargetFiles = TargetFiles()


def nearest(train: List[Set[str]], text: Set[str], rarity: Dict[str, float]) -> int:
    """Return the number of the training text that shares the rarest words."""
    scores = [
        sum(rarity[w] ** 2 for w in text & other)
        / math.sqrt(sum(rarity[w] ** 2 for w in other) or 1.0)
        for other in train
    ]
    return scores.index(max(scores))


def main() -> int:
    """Print the scores."""
    config = parse(Config, prog="python -m benchmarks.first_words")
    train, dev = config.files.read(1)
    wanted = [words(text) for text in dev.pairs or []]
    copied = [words(text)[: config.words] for text in dev.texts]
    known = [set(words(text)) for text in train.texts]
    counts = collections.Counter(word for text in known for word in text)
    rarity = {word: math.log(len(known) / count) for word, count in counts.items()}
    places = [nearest(known, set(words(text)) & set(rarity), rarity) for text in dev.texts]
    similar = [words((train.pairs or [])[place]) for place in places]
    for name, found in (("first words", copied), ("most similar text", similar)):
        mean = sum(map(rouge_l, found, wanted)) / len(wanted)
        print(f"{name}: ROUGE-L {mean:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
