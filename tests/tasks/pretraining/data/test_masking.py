"""Masks: their rates, their words, and that they depend on (seed, pass, sequence) alone."""

import numpy as np
import pytest

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from amp_xla.tasks.pretraining.data.masking import Masking

pytestmark = pytest.mark.once

PAD, UNK, CLS, SEP, MASK = range(5)
UNITS = ("word", "token")
VOCAB, LENGTH = 1000, 128


def masking(**changes):
    return Masking(Tokenizer([*SPECIAL_TOKENS, *map(str, range(5, VOCAB))]), **changes)


def text(rows, seed=0, longest=6):
    """Sequences of words of 1 to ``longest`` pieces, two documents each, the last one padded."""
    rng = np.random.RandomState(seed)
    ids = rng.randint(5, VOCAB, (rows, LENGTH)).astype(np.int32)
    starts = np.zeros((rows, LENGTH), bool)
    for row in range(rows):
        begins = np.cumsum(np.minimum(rng.geometric(0.6, LENGTH), longest))
        starts[row, begins[begins < LENGTH]] = True
    ids[:, 0], ids[:, 64], ids[:, -1] = CLS, SEP, SEP
    ids[-1, 40:] = PAD
    starts[:, [0, 1, 64, 65, -1]] = True
    return ids, starts


def below(statistic, freedom):
    """Chi-square below its 99.9% quantile (Wilson-Hilferty); our draws vary less than coins."""
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    return statistic < quantile


@pytest.mark.parametrize("unit", UNITS)
def test_rates_on_a_hundred_thousand_tokens(unit):
    ids, starts = text(900)
    result = masking(unit=unit)(ids, starts, 3, np.arange(len(ids)))
    ordinary = ids > MASK
    n = int(ordinary.sum())
    assert n > 100_000
    where = np.zeros(ids.shape, bool)
    rows, columns = np.nonzero(result["weights"])
    where[rows, result["positions"][rows, columns]] = True
    assert not (where & ~ordinary).any()
    share = where.sum() / n
    assert abs(share - 0.15) < 0.003, share
    new, old = result["token_ids"][where], ids[where]
    random = (new != MASK) & (new != old)
    counts = np.array([(new == MASK).sum(), random.sum(), (new == old).sum()])
    expected = np.array([0.8, 0.1 * (1 - 1 / (VOCAB - 5)), 0.1]) * where.sum()
    assert below(((counts - expected) ** 2 / expected).sum(), 2), counts / where.sum()
    assert (result["token_ids"][~where] == ids[~where]).all()
    # Replacements are any ordinary token, each as likely.
    bins = np.bincount((new[random] - 5) * 20 // (VOCAB - 5), minlength=20)
    assert new[random].min() > MASK and below(((bins - bins.mean()) ** 2 / bins.mean()).sum(), 19)


@pytest.mark.parametrize("unit", UNITS)
def test_masks_depend_on_seed_pass_and_sequence_alone(unit):
    ids, starts = text(12)
    mask = masking(unit=unit, seed=7)
    whole = mask(ids, starts, 5, np.arange(100, 112))
    for rows in ([3], [11, 2], list(range(5, 12))):
        part = mask(ids[rows], starts[rows], 5, 100 + np.array(rows))
        for name, array in part.items():
            np.testing.assert_array_equal(array, whole[name][rows])
    others = [masking(unit=unit, seed=8)(ids, starts, 5, np.arange(100, 112)),
              mask(ids, starts, 6, np.arange(100, 112)),
              mask(ids, starts, 5, np.arange(12))]  # fmt: skip
    for other in others:
        assert (other["positions"] != whole["positions"]).any()


def test_labels_are_what_stood_there_and_the_room_is_fixed():
    ids, starts = text(500)
    result = masking()(ids, starts, 0, np.arange(500))
    assert result["positions"].shape == result["labels"].shape == (500, 24)
    assert 0.2 * LENGTH >= 24
    counts = result["weights"].sum(1)
    assert counts.max() <= 24 and (counts[:-1] >= 12).all()
    real = result["weights"] > 0
    np.testing.assert_array_equal(
        np.take_along_axis(ids, result["positions"], 1)[real], result["labels"][real]
    )
    assert not result["positions"][~real].any() and not result["labels"][~real].any()
    names = ("token_ids", "positions", "labels", "weights")
    assert [result[a].dtype for a in names] == [np.int32, np.int32, np.int32, np.float32]
