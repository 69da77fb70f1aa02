"""Texts in windows: no token is left out, and the windows of a text stay together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_xla.data.batches import windows
from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.batches.protocol import SHARE, RankShard, micro_batches
from amp_xla.data.batches.windows import WindowBatches
from amp_xla.data.labelled import Preparation, WindowOptions
from amp_xla.data.text.readers import Dataset
from amp_xla.data.text.tokenizer import Encoded, Part, Tokenizer
from amp_xla.errors import DataError, SettingsError
from tests.support.encoded import digest, ids_of

LENGTH = 12  # with one token before the text and one after it


def texts(sizes, stride):
    """Return texts whose tokens are all different."""
    ends = np.cumsum(sizes)
    tokens = [list(range(100 + end - size, 100 + end)) for size, end in zip(sizes, ends.tolist())]
    return tokens, Encoded.fitting((Part([1], each, [2]) for each in tokens), LENGTH, stride)


def make(encoded, packed, **options):
    labels = 100 + np.arange(len(encoded.windows.counts))
    kind, lengths = (PackedBatches, [LENGTH]) if packed else (Batches, [6, LENGTH])
    rows = kind(encoded, None, lengths, 16, seed=3)
    most = int(encoded.windows.counts.max())
    return WindowBatches(rows, labels, seed=3, most=most, **options)


def check(batch, tokens, found):
    """Compare the windows of a batch with the texts; add the texts to ``found``."""
    groups, places = batch["windows"].shape
    slots = places * groups // len(batch["token_ids"])
    names = "windows sample_ids labels weights owners begins".split()
    grids = [batch[name].reshape(groups, places) for name in names]
    of_windows, of_samples, labels, weights, owners, begins = grids
    rows = batch["token_ids"].reshape(groups, places // slots, -1)
    numbers = batch.get("slots", np.where(batch["token_ids"] > 0, 0, -1)).reshape(rows.shape)
    for group, place in np.argwhere(of_samples >= 0):
        text = of_samples[group, place]
        of_text = np.flatnonzero(of_windows[group] == place)
        assert set(owners[group, of_text]) == {text}
        assert (labels[group, place], weights[group, place]) == (100 + text, 1)
        seen = []
        for each in of_text:
            row, slot = divmod(each, slots)
            ids = rows[group, row][numbers[group, row] == slot].tolist()
            begin = begins[group, each]
            assert ids == [1, *tokens[text][begin : begin + len(ids) - 2], 2]
            seen += range(begin, begin + len(ids) - 2)
        assert set(seen) == set(range(len(tokens[text])))
        found.append(text)
    assert (of_windows >= 0).sum() == (owners >= 0).sum()
    assert (weights == (of_samples >= 0)).all() and not labels[of_samples < 0].any()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 10), st.booleans(),
    st.sampled_from([(1, 1), (2, 1), (1, 2), (3, 2)]),
)  # fmt: skip
def test_each_text_is_once_in_an_epoch_with_all_its_windows_on_one_rank(sizes, stride, packed, by):
    tokens, encoded = texts(sizes, stride)
    batches = make(encoded, packed)
    ranks, count = by
    shards = [RankShard(batches, rank, ranks, count) for rank in range(ranks)]
    dev = batches.like(encoded, 100 + np.arange(len(sizes)))
    assert set(dev.shapes) <= set(batches.shapes) | {(batches.rows, LENGTH)}
    for source in (batches, dev):
        found = []
        for batch in source.epoch(1):
            check(batch, tokens, found)
        assert sorted(found) == list(range(len(sizes)))
    for epoch in (0, 1):
        found = []
        for parts in zip(*(shard.epoch(epoch, start=0) for shard in shards)):
            micro = [one for part in parts for one in micro_batches(part)]
            assert {one["token_ids"].shape for one in micro} <= set(shards[0].shapes)
            assert sum(one[SHARE] for one in micro) == pytest.approx(1)
            for one in micro:
                check(one, tokens, found)
        assert sorted(found) == list(range(len(sizes)))


@pytest.mark.parametrize(("packed", "expected"), [(False, "363be8090c31"), (True, "b98b30c4204f")])
def test_the_order_is_the_same_in_every_version(packed, expected):
    batches = make(texts([1 + i * 7 % 39 for i in range(200)], 6)[1], packed)
    assert digest(batches.epoch(2)).startswith(expected)
    assert digest(batches.epoch(2, start=2)) == digest(list(batches.epoch(2))[2:])


def test_groups_leave_few_rows_empty_and_means_are_over_the_rows_of_a_text():
    """Five windows per text: in groups of 16 rows, one would be empty."""
    batches = make(texts([50] * 40, 10)[1], packed=False)
    assert batches.group == 5 and batches.shapes == [(15, LENGTH)]
    assert len(list(batches.epoch(0))) == 14  # three texts in each
    batch = {"sample_ids": np.array([4, -1, 2, -1]), "owners": np.array([4, 4, 2, -1])}
    assert windows.means(np.array([1.0, 3.0, 5.0, 7.0]), batch).tolist() == [2.0, 2.0, 5.0, 7.0]


def test_pairs_keep_the_shorter_text_in_every_window():
    tokenizer = Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnop"])
    lines = [
        "a b\tc d e f g h i j k",
        "c d e f g h i j k\ta b",
        "a b c d e f\tg h i j k l m n",
        "a",
    ]
    encoded = tokenizer.encode_lines(lines, 9, stride=3)
    ids = [ids_of(encoded, row)[0] for row in range(len(encoded))]
    rows = [" ".join(tokenizer.tokens[i].strip("[]") for i in row) for row in ids]
    assert encoded.windows.counts.tolist() == [3, 3, 3, 1]
    assert rows[:3] == [f"CLS a b SEP {part} SEP" for part in ("c d e f", "f g h i", "h i j k")]
    assert rows[3:6] == [f"CLS {part} SEP a b SEP" for part in ("c d e f", "f g h i", "h i j k")]
    assert rows[6] == "CLS a b c SEP g h i SEP" and rows[8] == "CLS a b c SEP l m n SEP"
    assert encoded.lost.tolist() == [0, 0, 3, 0] and rows[9] == "CLS a SEP"
    assert encoded.first_lengths[:6].tolist() == [4, 4, 4, 6, 6, 6]
    cut = Preparation(None, WindowOptions(max_length=9, stride=3), None, 0.0, 1)._lost
    assert cut(encoded) == "\n1 of 4 training pairs: shorter texts are cut to half a row"
    assert cut(tokenizer.encode_lines(lines[:2], 9, stride=3)) == ""


def test_too_many_windows_are_one_error_with_an_example():
    encoded = [texts([10, 50], 10)[1]] * 2
    data = Dataset(["short", "long " * 20])
    options = WindowOptions(max_length=LENGTH, stride=10)
    for limit, shape, said in (
        (4, None, "1 of 2 texts have more windows than --batch-size 4, such as 'long .*' with 5;"),
        (6, (16, 8), "--batch-size 6: since its start .* windows in groups of 8 rows; allowed: 8"),
    ):
        preparation = Preparation(None, options, None, 0.0, 1, micro_batch=limit, windows=shape)
        with pytest.raises((DataError, SettingsError), match=said):
            preparation.labelled((data, data), None, None, encoded)
    with pytest.raises(SettingsError, match="--stride 11: allowed is 0 .no windows., or 1 to 10"):
        WindowOptions(max_length=LENGTH, stride=11)
