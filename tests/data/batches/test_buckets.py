"""Every sample once an epoch, in few shapes, in an order that needs no replay."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_xla.data.batches.buckets import Batch, Batches, choose_lengths
from amp_xla.data.text import corpora
from amp_xla.data.text.readers import read
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from tests.data.pretraining.corpus import digest, encoded
from tests.data.text import reviews

sizes = st.lists(st.integers(2, 40), min_size=1, max_size=120)
options = st.fixed_dictionaries(
    dict(
        lengths=st.lists(st.integers(2, 39), max_size=4).map(lambda some: [*some, 40]),
        batch_size=st.integers(1, 17),
        seed=st.integers(-5, 5),
        shuffle=st.booleans(),
        token_budget=st.booleans(),
    )
)


def check(batch: Batch, samples: Any, labels: np.ndarray) -> None:
    """The rows hold exactly the samples they name."""
    rows, columns = batch.token_ids.shape
    assert batch.token_ids.dtype == batch.segment_ids.dtype == np.int32
    assert batch.labels is not None and batch.labels.dtype == np.int32
    assert batch.weights.dtype == np.float32 and batch.sample_ids.dtype == np.int64
    assert batch.segment_ids.shape == (rows, columns)
    assert batch.labels.shape == batch.weights.shape == batch.sample_ids.shape == (rows,)
    for row, sample in enumerate(batch.sample_ids):
        ids, segments = samples.row(sample) if sample >= 0 else ([], [])
        assert batch.weights[row] == float(sample >= 0)
        assert batch.labels[row] == (labels[sample] if sample >= 0 else 0)
        pad = [0] * (columns - len(ids))
        assert batch.token_ids[row].tolist() == ids + pad
        assert batch.segment_ids[row].tolist() == segments + pad


def seen(batches: List[Batch]) -> List[int]:
    ids = np.concatenate([batch.sample_ids for batch in batches])
    return ids[ids >= 0].tolist()


@given(sizes, options, st.booleans(), st.integers(0, 3))
def test_every_sample_once_an_epoch(lengths: Any, made: Any, pairs: bool, epoch: int) -> None:
    samples, labels = encoded(lengths, pairs)
    batches = Batches(samples, labels, **made)
    found = list(batches.epoch(epoch))
    assert len(found) == batches.steps_per_epoch(epoch)
    assert [batch.index for batch in found] == list(range(len(found)))
    assert sorted(seen(found)) == list(range(len(lengths)))
    for batch in found:
        check(batch, samples, labels)
    assert sorted({b.token_ids.shape for b in found}, key=lambda s: s[1]) == batches.shapes
    fed = sum(batch.token_ids.size for batch in found)
    assert batches.padding_share == pytest.approx(1 - sum(lengths) / fed)
    if made["token_budget"]:
        for rows, columns in batches.shapes:
            assert rows == made["batch_size"] or (
                rows % 8 == 0 and rows * columns <= made["batch_size"] * 40
            )


@given(sizes, options, st.integers(0, 2), st.data())
@settings(max_examples=50)
def test_any_start_is_the_rest_of_the_epoch(
    lengths: Any, made: Any, epoch: int, data: st.DataObject
) -> None:
    """... of another object, as in a new process: nothing depends on what was made before."""
    whole = list(Batches(*encoded(lengths), **made).epoch(epoch))
    start = data.draw(st.integers(0, len(whole)))
    rest = Batches(*encoded(lengths), **made).epoch(epoch, start=start)
    assert digest(rest) == digest(whole[start:])


@given(sizes, options, st.integers(0, 2))
@settings(max_examples=50)
def test_dropping_leaves_out_only_what_fills_no_batch(lengths: Any, made: Any, epoch: int) -> None:
    samples, labels = encoded(lengths)
    try:
        batches = Batches(samples, labels, drop_remainder=True, **made)
    except DataError as error:
        assert "fill no batch" in str(error)
        return
    found = list(batches.epoch(epoch))
    kept = seen(found)
    assert len(set(kept)) == len(kept)
    # Every bucket passes its remainder up, so at most one batch of each is ever short.
    assert all((batch.weights == 1).all() for batch in found)
    assert len(lengths) - len(kept) < max(rows for rows, _ in Batches(samples, **made).shapes)
    fed = sum(batch.token_ids.size for batch in batches.epoch(0))
    real = sum(lengths[i] for i in seen(list(batches.epoch(0))))
    assert batches.padding_share == pytest.approx(1 - real / fed)


def test_epochs_and_seeds_differ_and_batches_mix() -> None:
    lengths = [5 + i % 30 for i in range(400)]
    orders = [
        seen(list(Batches(*encoded(lengths), lengths=[16, 40], seed=s).epoch(e)))
        for s in (0, 1)
        for e in (0, 1)
    ]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert sum(a == b for a, b in zip(one, other)) < 20
    batches = Batches(*encoded(lengths), lengths=[16, 40], batch_size=8)
    widths = [batch.token_ids.shape[1] for batch in batches.epoch(0)]
    changes = sum(a != b for a, b in zip(widths, widths[1:]))
    assert changes > len(widths) / 4  # short and long batches take turns by chance


def test_passed_up_samples_are_not_always_together() -> None:
    lengths = [8] * 33 + [16] * 63
    batches = Batches(*encoded(lengths), lengths=[8, 16], batch_size=32)
    assert batches.shapes == [(32, 8), (32, 16)] and batches.steps_per_epoch() == 3
    where = set()
    for epoch in range(12):
        for batch in batches.epoch(epoch):
            short = (batch.sample_ids >= 0) & (batch.sample_ids < 33)
            if batch.token_ids.shape[1] == 16 and short.any():
                where.add((int(np.flatnonzero(short)[0]), batch.index))
    assert len(where) > 6


def test_unshuffled_keeps_the_order_of_the_corpus() -> None:
    batches = Batches(*encoded([3, 4, 5, 6, 7] * 20), lengths=[8], batch_size=32, shuffle=False)
    assert seen(list(batches.epoch(0))) == list(range(100))
    assert digest(batches.epoch(0)) == digest(batches.epoch(5))


def test_like_has_the_same_shapes_for_other_samples() -> None:
    train = Batches(*encoded([5, 15, 40] * 50), lengths=[8, 16, 40], batch_size=8, seed=3)
    dev = train.like(*encoded([6, 14, 39] * 9))
    assert set(dev.shapes) <= set(train.shapes)
    with pytest.raises(DataError, match="41 tokens"):
        train.like(*encoded([41]))


def test_without_labels() -> None:
    assert all(b.labels is None for b in Batches(encoded([4] * 9)[0], lengths=[8]).epoch(0))


def test_described_in_one_line() -> None:
    one = Batches(*encoded([16] * 64), lengths=[16])
    assert one.describe() == "padding 0.0%, 1 shape: 32x16"
    two = Batches(*encoded([8, 16] * 64), lengths=[8, 16], token_budget=True)
    assert two.describe() == "padding 0.0%, 2 shapes: 64x8, 32x16"


def test_what_cannot_be() -> None:
    samples, labels = encoded([5, 9])
    for arguments, message in (
        (dict(batch_size=0), "batch_size=0"),
        (dict(lengths=[8]), "9 tokens"),
        (dict(lengths=[]), "9 tokens"),
        (dict(label_ids=labels[:1]), "2 samples but 1 labels"),
        (dict(drop_remainder=True), "fill no batch of 32"),
    ):
        with pytest.raises(DataError, match=message):
            Batches(samples, **{"lengths": [16], **arguments})
    with pytest.raises(DataError, match="no samples"):
        Batches(encoded([])[0])
    with pytest.raises(ValueError, match="steps 0 to 1"):
        Batches(samples, lengths=[16]).epoch(0, start=2)


def test_the_order_is_the_same_in_every_version() -> None:
    """Resumed runs rely on it: in every Python and numpy."""
    lengths = [2 + i * 7 % 39 for i in range(500)]
    batches = Batches(*encoded(lengths, True), lengths=[16, 24, 40], batch_size=16, seed=11)
    assert (
        digest(batches.epoch(2))
        == "86b1306b987186da93d5b366c5b2a00af861ffa59aaad2e30732c487e23471ee"
    )


def test_built_in_text_wastes_what_the_best_lengths_waste() -> None:
    texts = corpora.pydoc()[0].texts
    samples = Tokenizer.train(texts, 4000).encode(texts, max_length=96)
    chosen = choose_lengths(samples.lengths, 6, max_length=96)
    buckets = np.asarray(chosen)[np.searchsorted(chosen, samples.lengths)]
    floor = 1 - samples.lengths.sum() / buckets.sum()
    batches = Batches(samples, lengths=chosen)
    # What leftovers add is at most one batch of the longest rows with one sample in it.
    leftovers = 31 * 96 / samples.lengths.sum()
    assert len(batches.shapes) <= 6 and floor <= batches.padding_share < floor + leftovers
    fixed = Batches(samples, lengths=[96]).padding_share
    assert batches.padding_share < fixed / 3


@reviews.needed
def test_reviews_wastes() -> None:
    """Six lengths cannot do better than 15%: the optimum is exact. See packing for less."""
    texts = read(str(reviews.TRAIN)).texts
    samples = Tokenizer.load(str(reviews.VOCAB)).encode(texts, max_length=256)
    batches = Batches(samples, lengths=choose_lengths(samples.lengths, 6, max_length=256))
    assert len(batches.shapes) == 6 and 0.150 < batches.padding_share < 0.155
    budget = Batches(samples, lengths=[40, 64, 96, 136, 192, 256], token_budget=True)
    assert budget.padding_share < 0.16
