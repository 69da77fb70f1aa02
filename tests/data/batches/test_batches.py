"""Each sample once per epoch, in few shapes, from any step on, with one text per row or several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_xla.data.batches.buckets import Batches, PackedBatches
from amp_xla.data.batches.protocol import SHARE, RankShard, micro_batches, whole
from amp_xla.errors import DataError
from tests.support.encoded import digest, encoded, ids_of

LENGTH = 40
sizes = st.lists(st.integers(2, LENGTH), min_size=1, max_size=120)
common = dict(batch_size=st.integers(1, 17), seed=st.integers(-5, 5), shuffle=st.booleans())
lengths_of_buckets = st.lists(st.integers(2, 39), max_size=4).map(lambda some: [*some, LENGTH])
shapes_of_rows = st.none() | st.tuples(st.integers(1, 8), st.integers(2, 12))
kinds = st.one_of(
    st.fixed_dictionaries(dict(common, lengths=lengths_of_buckets)),
    st.fixed_dictionaries(dict(common, shape=shapes_of_rows)),
)


def make(samples, labels, options):
    if "lengths" in options:
        return Batches(samples, labels, **options)
    return PackedBatches(samples, labels, [LENGTH], **options)


def check(batch, samples, labels):
    """Compare each row with the samples that it names."""
    rows, columns = batch["token_ids"].shape
    dtypes = dict(weights=np.float32, sample_ids=np.int64)
    assert all(array.dtype == dtypes.get(name, np.int32) for name, array in batch.items())
    assert all(len(array) == rows for array in batch.values())
    grids = [batch[name].reshape(rows, -1) for name in ("sample_ids", "labels", "weights")]
    for row, (ids, answers, weights) in enumerate(zip(*grids)):
        real = [i for i in ids.tolist() if i >= 0]
        assert ids.tolist() == real + [-1] * (len(ids) - len(real))
        assert weights.tolist() == [float(i >= 0) for i in ids]
        assert answers.tolist() == [labels[i] if i >= 0 else 0 for i in ids]
        expected = {"token_ids": [], "segment_ids": [], "position_ids": [], "slots": []}
        for slot, sample in enumerate(real):
            tokens, segments = ids_of(samples, sample)
            expected["token_ids"] += tokens
            expected["segment_ids"] += segments
            expected["position_ids"] += range(len(tokens))
            expected["slots"] += [slot] * len(tokens)
        for name in expected:
            if name in batch:
                padding = [-1 if name == "slots" else 0] * (columns - len(expected[name]))
                assert batch[name][row].tolist() == expected[name] + padding


def seen(batches):
    ids = np.concatenate([batch["sample_ids"].ravel() for batch in batches])
    return ids[ids >= 0].tolist()


@pytest.mark.once
@given(sizes, kinds, st.booleans(), st.integers(0, 3))
def test_each_sample_once_per_epoch(lengths, options, pairs, epoch):
    samples, labels = encoded(lengths, pairs)
    batches = make(samples, labels, options)
    built = list(batches.epoch(epoch))
    assert len(built) == batches.steps_per_epoch()
    assert sorted(seen(built)) == list(range(len(lengths)))
    for batch in built:
        check(batch, samples, labels)
    assert sorted({b["token_ids"].shape for b in built}, key=lambda s: s[1]) == batches.shapes
    fed = sum(batch["token_ids"].size for batch in built)
    assert batches.padding_share == pytest.approx(1 - sum(lengths) / fed)


@pytest.mark.once
@given(sizes, kinds, st.integers(0, 2), st.data())
@settings(max_examples=50)
def test_any_start_is_the_rest_of_the_epoch(lengths, options, epoch, data):
    """A new object, as in a new process, depends on nothing that was built before."""
    every = list(make(*encoded(lengths), options).epoch(epoch))
    start = data.draw(st.integers(0, len(every)))
    rest = make(*encoded(lengths), options).epoch(epoch, start=start)
    assert digest(rest) == digest(every[start:])


@pytest.mark.once
def test_packed_steps_have_about_batch_size_samples():
    lengths = np.clip(np.random.RandomState(0).lognormal(3.2, 0.8, 3000), 3, 128).astype(int)
    batches = PackedBatches(*encoded(lengths), [128], 32, seed=1)
    counts = np.array([batch["weights"].sum() for batch in batches.epoch(0)])
    assert abs(counts.mean() - 32) < 2 and batches.padding_share < 0.02


@pytest.mark.once
@pytest.mark.parametrize("options", [dict(lengths=[8, 16, 40]), dict(shape=None)])
def test_dev_batches_have_the_same_shapes_and_the_order_of_the_corpus(options):
    train = make(*encoded([5, 15, 40] * 50), dict(options, batch_size=8, seed=3))
    for lengths in ([40], [3] * 50, [6, 14, 39] * 9):
        dev = train.like(*encoded(lengths))
        assert set(dev.shapes) <= set(train.shapes)
        order = seen(list(dev.epoch(0)))
        assert sorted(order) == list(range(len(lengths)))
        assert len(set(lengths)) > 1 or order == sorted(order)
        assert digest(dev.epoch(0)) == digest(dev.epoch(1))
    with pytest.raises(DataError, match="41 tokens|a sample has 41"):
        train.like(*encoded([41]))


@pytest.mark.parametrize("options, expected", [
    (dict(lengths=[16, 24, 40]), "01b8380de5c5"), (dict(shape=None), "e1699741f381"),
])  # fmt: skip
def test_the_order_is_the_same_in_every_version(options, expected):
    """Resumed runs depend on it, in every Python and NumPy."""
    lengths = [2 + i * 7 % 39 for i in range(500)]
    batches = make(*encoded(lengths, True), dict(options, batch_size=16, seed=11))
    assert digest(batches.epoch(2)).startswith(expected)


@pytest.mark.once
@pytest.mark.parametrize("options", [dict(lengths=[8, 14, 20], batch_size=6), dict(batch_size=8)])
@pytest.mark.parametrize(("ranks", "count"), [(2, 1), (3, 1), (4, 1), (1, 3), (2, 2), (9, 1)])
def test_all_micro_batches_of_all_ranks_are_the_batch(options, ranks, count):
    source = make(*encoded([3 + i * 7 % 18 for i in range(53)]), dict(options, seed=5))
    shards = [RankShard(source, rank, ranks, count) for rank in range(ranks)]
    assert whole(shards[0]) is source and whole(source) is source
    for epoch in (0, 1):
        walks = [shard.epoch(epoch, start=1) for shard in shards]
        for batch, parts in zip(source.epoch(epoch, start=1), zip(*walks)):
            micro = [one for part in parts for one in micro_batches(part)]
            assert len(micro) == ranks * count
            assert {one["token_ids"].shape for one in micro} <= set(shards[0].shapes)
            assert sum(one[SHARE] for one in micro) == pytest.approx(1)
            for name, array in batch.items():
                # Row i of the batch is row i // shards of micro-batch i % shards.
                rows = np.stack([one[name] for one in micro], 1)
                joined = rows.reshape(-1, *array.shape[1:])
                np.testing.assert_array_equal(joined[: len(array)], array)
                if name in ("weights", "sample_ids"):
                    assert (joined[len(array) :] == (0 if name == "weights" else -1)).all()
