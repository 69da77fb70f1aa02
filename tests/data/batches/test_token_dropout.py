"""Token dropout: its share, the tokens that it spares, and the same tokens on resume."""

from __future__ import annotations

import numpy as np
import pytest

from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.labelled import token_dropout
from amp_xla.data.text.tokenizer import Tokenizer
from tests.support.encoded import digest

pytestmark = pytest.mark.once

WORDS = [f"word{i}" for i in range(200)]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TOKENIZER = Tokenizer(TOKENS)
MASK = TOKENS.index("[MASK]")


@pytest.mark.parametrize("packed", [False, True])
def test_a_share_of_the_ordinary_tokens_is_hidden_as_seed_epoch_and_step_decide(packed):
    random = np.random.RandomState(0)
    texts = [" ".join(random.choice(WORDS, random.randint(1, 40))) for _ in range(700)]
    encoded = TOKENIZER.encode(texts, max_length=48)
    batches = PackedBatches(encoded, None, 48, 32) if packed else Batches(encoded, None, [16, 48])
    whole = list(token_dropout(batches, 0.1, TOKENIZER, seed=3).epoch(1))
    hidden, ordinary = 0, 0
    for before, after in zip(batches.epoch(1), whole):
        changed = before["token_ids"] != after["token_ids"]
        assert (after["token_ids"][changed] == MASK).all()
        assert (before["token_ids"][changed] > MASK).all()
        hidden += changed.sum()
        ordinary += (before["token_ids"] > MASK).sum()
        for name in set(before) - {"token_ids"}:
            np.testing.assert_array_equal(before[name], after[name])
    assert abs(hidden / ordinary - 0.1) < 4 * np.sqrt(0.09 / ordinary)
    rest = token_dropout(batches, 0.1, TOKENIZER, seed=3).epoch(1, start=2)
    assert digest(rest) == digest(whole[2:])
    assert digest(token_dropout(batches, 0.1, TOKENIZER, seed=4).epoch(1)) != digest(whole)
