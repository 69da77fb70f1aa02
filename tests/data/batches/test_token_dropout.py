"""Token dropout: its share, the tokens that it spares, and the same tokens on resume."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.data.batches.buckets import Batches
from amp_xla.data.batches.packed import PackedBatches
from amp_xla.data.batches.token_dropout import token_dropout
from amp_xla.data.text.tokenizer import Tokenizer

WORDS = [f"word{i}" for i in range(200)]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TOKENIZER = Tokenizer(TOKENS)
MASK = TOKENS.index("[MASK]")


def kinds():
    random = np.random.RandomState(0)
    texts = [" ".join(random.choice(WORDS, random.randint(1, 40))) for _ in range(700)]
    encoded = TOKENIZER.encode(texts, max_length=48)
    labels = np.arange(700)
    return [Batches(encoded, labels, [16, 48], 32), PackedBatches(encoded, labels, 48, 32)]


BATCHES = pytest.mark.parametrize("batches", kinds(), ids=["buckets", "packed"])


@BATCHES
def test_a_share_of_the_ordinary_tokens_is_hidden_and_nothing_else_changes(batches):
    hidden, ordinary = 0, 0
    for before, after in zip(batches.epoch(1), token_dropout(batches, 0.1, TOKENIZER).epoch(1)):
        changed = before["token_ids"] != after["token_ids"]
        assert (after["token_ids"][changed] == MASK).all()
        assert (before["token_ids"][changed] > MASK).all()
        hidden += changed.sum()
        ordinary += (before["token_ids"] > MASK).sum()
        for name, value in before.items():
            if name != "token_ids":
                np.testing.assert_array_equal(value, after[name])
    assert abs(hidden / ordinary - 0.1) < 4 * np.sqrt(0.09 / ordinary)


@BATCHES
def test_a_step_is_a_function_of_seed_and_epoch(batches):
    noisy = token_dropout(batches, 0.2, TOKENIZER, seed=3)
    whole = [b["token_ids"] for b in noisy.epoch(2)]
    for start in (0, 1, len(whole) - 1):
        for now, then in zip(noisy.epoch(2, start), whole[start:]):
            np.testing.assert_array_equal(now["token_ids"], then)
    other = [b["token_ids"] for b in token_dropout(batches, 0.2, TOKENIZER, seed=4).epoch(2)]
    assert any((a != b).any() for a, b in zip(whole, other))
