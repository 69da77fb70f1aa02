"""Every vocabulary is asked for the same words of the same texts."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.data.pretraining.cloze import ClozeBenchmark
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError

pytestmark = pytest.mark.once

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WHOLE = Tokenizer([*SPECIAL, "sea", "salt", "the", "in", "Is", "is"], lowercase=True)
PIECES = Tokenizer([*SPECIAL, "se", "##a", "sal", "##t", "the", "Is", "is"], lowercase=False)
TEXTS = ["the salt is the sea", "in in", "sea Is salt " * 20]


def shown(tokenizer, question):
    tokens = [tokenizer.tokens[i] for i in question.token_ids]
    for place, label in zip(question.positions, question.labels):
        assert tokens[place] == "[MASK]"
        tokens[place] = f"<{tokenizer.tokens[label]}>"
    return " ".join(tokens)


def test_both_vocabularies_are_asked_for_the_same_whole_words():
    benchmark = ClozeBenchmark.of(TEXTS, [WHOLE, PIECES], 16)
    assert len(benchmark.texts) == 2  # "in" cannot be spelled by one
    one = [shown(WHOLE, q) for q in benchmark.one_by_one(WHOLE, 1)]
    two = [shown(PIECES, q) for q in benchmark.one_by_one(PIECES, 1)]
    assert one[1] == "[CLS] the <salt> is the sea [SEP]"
    assert two[1] == "[CLS] the <sal> <##t> is the se ##a [SEP]"
    assert len(one) == len(two) == 5
    for a, b in zip(benchmark.together(WHOLE, 0.4, 3), benchmark.together(PIECES, 0.4, 3)):
        text, same = shown(WHOLE, a), shown(PIECES, b)
        joined = same.replace("<sal> <##t>", "<salt>").replace("<se> <##a>", "<sea>")
        joined = joined.replace("sal ##t", "salt").replace("se ##a", "sea")
        assert text.lower() == joined.lower() and text.count("<") >= 2
        assert max(b.words) + 1 == max(a.words) + 1 == len(a.labels)


def test_what_cannot_be_spelled_is_counted_and_never_asked_for():
    benchmark = ClozeBenchmark.of(["the salt of the sea"], [WHOLE], 16)
    assert benchmark.unknown == pytest.approx(0.2)
    assert sum(len(q.labels) for q in benchmark.one_by_one(WHOLE, 9)) == 4
    assert np.concatenate(benchmark.spelled).tolist() == [True, True, False, True, True]
    with pytest.raises(DataError, match="of 1 texts none has a word"):
        ClozeBenchmark.of(["qq"], [WHOLE], 16)
