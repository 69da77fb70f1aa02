"""Rows of several samples: nothing lost, nothing twice, next to nothing padded, one shape."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_xla.data.batches.layout import Layout
from amp_xla.data.batches.packed import PackedBatch, PackedBatches
from amp_xla.data.text import corpora
from amp_xla.data.text.readers import read
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError
from tests.data.pretraining.corpus import digest, encoded
from tests.data.text import reviews

LENGTH = 40
sizes = st.lists(st.integers(2, LENGTH), min_size=1, max_size=120)
options = st.fixed_dictionaries(
    dict(
        batch_size=st.integers(1, 40),
        seed=st.integers(-5, 5),
        shuffle=st.booleans(),
        layout=st.one_of(
            st.none(),
            st.builds(
                lambda rows, slots: Layout(tuple(zip(rows, (LENGTH, 32, 24))), slots),
                st.lists(st.integers(1, 4), min_size=1, max_size=3),
                st.integers(1, 12),
            ),
        ),
    )
)


def check(batch: PackedBatch, samples: Any, labels: np.ndarray, layout: Layout) -> None:
    """Every slot's tokens stand together, with their own positions, and the rest is empty."""
    for name in ("token_ids", "segment_ids", "position_ids", "slots"):
        value = getattr(batch, name)
        assert value.dtype == np.int32 and value.shape == (1, layout.tokens)
    assert batch.labels is not None and batch.labels.dtype == np.int32
    assert batch.weights.dtype == np.float32 and batch.sample_ids.dtype == np.int64
    entries = (layout.rows * layout.slots,)
    assert batch.labels.shape == batch.weights.shape == batch.sample_ids.shape == entries
    assert np.array_equal(batch.slots < 0, batch.token_ids == 0)
    assert not batch.position_ids[batch.slots < 0].any()
    row_ends = np.cumsum([n for rows, n in layout.blocks for _ in range(rows)])
    row_of_token = np.searchsorted(row_ends, np.arange(layout.tokens), side="right")
    for entry, sample in enumerate(batch.sample_ids):
        row, slot = divmod(entry, layout.slots)
        at = np.flatnonzero((batch.slots[0] == slot) & (row_of_token == row))
        ids, segments = samples.row(sample) if sample >= 0 else ([], [])
        assert batch.weights[entry] == float(sample >= 0)
        assert batch.labels[entry] == (labels[sample] if sample >= 0 else 0)
        assert batch.token_ids[0, at].tolist() == ids
        assert batch.segment_ids[0, at].tolist() == segments
        assert batch.position_ids[0, at].tolist() == list(range(len(ids)))
        assert not len(at) or at[-1] - at[0] + 1 == len(at)


def seen(batches: List[PackedBatch]) -> List[int]:
    ids = np.concatenate([batch.sample_ids for batch in batches])
    return sorted(ids[ids >= 0].tolist())


@given(sizes, options, st.booleans(), st.integers(0, 3))
def test_every_sample_once_an_epoch(lengths: Any, made: Any, pairs: bool, epoch: int) -> None:
    samples, labels = encoded(lengths, pairs)
    batches = PackedBatches(samples, labels, LENGTH, **made)
    found = list(batches.epoch(epoch))
    assert len(found) == batches.steps_per_epoch(epoch)
    assert [batch.index for batch in found] == list(range(len(found)))
    assert seen(found) == list(range(len(lengths)))
    for batch in found:
        check(batch, samples, labels, batches.layout)
    assert batches.shapes == [(1, batches.layout.tokens)] == [found[0].token_ids.shape]
    fed = sum(batch.token_ids.size for batch in found)
    assert batches.padding_share == pytest.approx(1 - sum(lengths) / fed)


@given(sizes, options, st.integers(0, 2), st.data())
@settings(max_examples=50)
def test_any_start_is_the_rest_of_the_epoch(
    lengths: Any, made: Any, epoch: int, data: st.DataObject
) -> None:
    whole = list(PackedBatches(*encoded(lengths), LENGTH, **made).epoch(epoch))
    start = data.draw(st.integers(0, len(whole)))
    rest = PackedBatches(*encoded(lengths), LENGTH, **made).epoch(epoch, start=start)
    assert digest(rest) == digest(whole[start:])


def test_epochs_differ_and_steps_are_alike() -> None:
    rng = np.random.RandomState(0)
    lengths = np.clip(rng.lognormal(3.2, 0.8, 3000), 3, 128).astype(int)
    batches = PackedBatches(*encoded(lengths), 128, 32, seed=1)
    first, second = (list(batches.epoch(e)) for e in (0, 1))
    alike = sum(
        int((a.sample_ids == b.sample_ids)[a.sample_ids >= 0].sum()) for a, b in zip(first, second)
    )
    assert alike < 60
    counts = np.array([batch.weights.sum() for batch in first])
    assert abs(counts.mean() - 32) < 4 and counts.std() < 5
    # Rows that stay empty are spread over the epoch: no step lacks more than one of ten.
    tokens = np.array([(batch.token_ids != 0).sum() for batch in first])
    assert tokens.min() > 0.8 * tokens.max() and np.median(tokens) > 0.99 * tokens.max()


def test_like_has_the_same_shape_and_slots() -> None:
    train = PackedBatches(*encoded([5, 9, 30] * 60), LENGTH, 16)
    for lengths in ([40], [3] * 50, [5, 9, 30] * 7):
        dev = train.like(*encoded(lengths))
        assert dev.shapes == train.shapes and dev.layout == train.layout
        assert seen(list(dev.epoch(0))) == list(range(len(lengths)))
        assert digest(dev.epoch(0)) == digest(dev.epoch(1))


def test_what_cannot_be() -> None:
    samples, labels = encoded([5, 9])
    for arguments, message in (
        (dict(length=8), "a sample has 9"),
        (dict(batch_size=0), "batch_size=0"),
        (dict(layout=Layout(((3, 8),), 2)), "rows of 8 tokens, and a sample has 9"),
        (dict(label_ids=labels[:1]), "2 samples but 1 labels"),
    ):
        with pytest.raises(DataError, match=message):
            PackedBatches(samples, **arguments)
    with pytest.raises(DataError, match="no samples"):
        PackedBatches(encoded([])[0])
    with pytest.raises(ValueError, match="steps 0 to 1"):
        PackedBatches(samples).epoch(0, start=2)


def test_the_order_is_the_same_in_every_version() -> None:
    lengths = [2 + i * 7 % 39 for i in range(500)]
    batches = PackedBatches(*encoded(lengths, True), 64, 16, seed=11)
    assert (
        digest(batches.epoch(2))
        == "1458e2a4b2abcb89f6691743fbe433dd0040baa44f65a95b3e820bce4ee71a62"
    )


def test_built_in_text_pads_little() -> None:
    texts = corpora.pydoc()[0].texts
    samples = Tokenizer.train(texts, 4000).encode(texts, max_length=96)
    batches = PackedBatches(samples, length=96)
    assert batches.padding_share < 0.02
    assert batches.describe().startswith("padding ") and "1 shape: " in batches.describe()


@reviews.needed
def test_reviews_pad_less_than_five_percent_in_one_shape() -> None:
    tokenizer = Tokenizer.load(str(reviews.VOCAB))
    for path, most in ((reviews.TRAIN, 0.005), (reviews.VALID, 0.02)):
        samples = tokenizer.encode(read(str(path)).texts, max_length=256)
        batches = PackedBatches(samples, length=256, batch_size=32)
        assert len(batches.shapes) == 1 and batches.padding_share < most
        assert len(samples) / batches.steps_per_epoch() == pytest.approx(32, abs=2)
