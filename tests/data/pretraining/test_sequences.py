"""Packing loses nothing, and the stream of batches is a function of the position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.pretraining import sequences
from amp_xla.data.pretraining.masking import Masking
from amp_xla.data.pretraining.phases import Phases
from amp_xla.data.pretraining.sequences import joined, packed, to_sequences
from amp_xla.data.pretraining.stream import Order, Stream
from amp_xla.errors import DataError

CLS, SEP, LENGTH = 2, 3, 16


@given(st.lists(st.lists(st.integers(5, 99), max_size=60), max_size=12), st.integers(0, 2**31))
def test_documents_come_back_whole(documents, seed):
    token_ids = np.array([t for d in documents for t in d], np.int32)
    starts = np.random.RandomState(seed).rand(len(token_ids)) < 0.6
    rows, begins = to_sequences(token_ids, starts, [len(d) for d in documents], LENGTH, CLS, SEP)
    stream, words = [], []
    for row, begin in zip(rows, begins):
        length = int((row != 0).sum())
        assert row[0] == CLS and row[length - 1] == SEP and not row[length:].any()
        assert begin[1]
        stream += row[1 : length - 1].tolist()
        words += begin[1 : length - 1].tolist()
    full = [d for d in documents if d]
    assert stream == [t for d in full for t in [*d, SEP]][:-1]
    assert (rows[:-1] != 0).all()  # only the last has padding
    inside = [w for w, token in zip(words, stream) if token != SEP]
    at_begin = {i * (LENGTH - 2) for i in range(len(rows))}
    kept = [i for i, token in enumerate(stream) if token != SEP]
    for got, asked, i in zip(inside, starts.tolist(), kept):
        assert got == asked or i in at_begin


class Letters:
    """A cutter whose tokens are a text's letters; a capital begins a word."""

    class tokenizer:
        cls_id, sep_id, pad_id = CLS, SEP, 0

    def __call__(self, texts):
        every = "".join(texts)
        starts = np.array([letter.isupper() for letter in every], bool)
        return np.array([*map(ord, every)], np.int32), starts, np.array([*map(len, texts)])


@given(st.lists(st.text("abC", max_size=40), max_size=12), st.integers(1, 60))
def test_packed_in_stretches_the_rows_are_the_same(texts, stretch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "STRETCH", stretch)
        parts = list(packed(texts, Letters(), LENGTH))
    rows, begins = to_sequences(*Letters()(texts), LENGTH, CLS, SEP)
    none = np.zeros((0, LENGTH), np.int32), np.zeros((0, LENGTH), bool), np.zeros(0, np.int32)
    got, got_begins, ids = (np.concatenate(some) for some in zip(none, *parts))
    np.testing.assert_array_equal(got, rows)
    np.testing.assert_array_equal(got_begins, begins)
    assert ids.tolist() == [*map(ord, "".join(texts))]


@given(
    st.lists(st.lists(st.lists(st.integers(5, 99), max_size=40), max_size=6), max_size=4),
    st.integers(2, 5),
)
def test_joined_rows_are_the_same_text(files, each):
    """Some of whose rows have padding in the middle, where a file ends."""
    made = [
        to_sequences(
            np.array([t for d in documents for t in d], np.int32),
            np.array([t % 3 == 0 for d in documents for t in d], bool),
            [len(d) for d in documents],
            LENGTH,
            CLS,
            SEP,
        )
        for documents in files
    ]
    rows = np.concatenate([np.zeros((0, LENGTH), np.int32), *(ids for ids, _ in made)])
    words = np.concatenate([np.zeros((0, LENGTH), bool), *(starts for _, starts in made)])
    long, begins = joined(rows, words, each)
    assert long.shape == begins.shape == (-(-len(rows) // each), each * LENGTH)
    for row, begin, part, word in zip(
        long,
        begins,
        np.split(rows, range(each, len(rows), each)),
        np.split(words, range(each, len(rows), each)),
    ):
        count = int((row != 0).sum())
        assert row[0] == CLS and row[count - 1] == SEP and not row[count:].any()
        inside = (part != 0) & (part != CLS) & (part != SEP)
        kept = (row != SEP) & (row != CLS) & (row != 0)
        np.testing.assert_array_equal(row[kept], part[inside])
        np.testing.assert_array_equal(begin[kept], word[inside])
        # A document's end stays one; where a full row ends in the middle of one, nothing stands.
        ends = sum((p[1:-1] == SEP).sum() for p in part)
        ends += sum(p[-1] == SEP for p in part[:-1] if not p[-1]) + 1
        assert (row == SEP).sum() <= ends


class Rows:
    """Sequences in memory: row i is [CLS] i ... [SEP]."""

    def __init__(self, n, length=LENGTH):
        self._ids = np.full((n, length), SEP, np.int32)
        self._ids[:, 0] = CLS
        self._ids[:, 1:-1] = 5 + np.arange(n)[:, None]
        self.reads, self.length = 0, length

    def __len__(self):
        return len(self._ids)

    def read(self, first, count):
        self.reads += 1
        assert first >= 0 and first + count <= len(self)
        part = self._ids[first : first + count]
        return part, np.ones_like(part, bool)


def stream(n=1000, size=32, batches=100, **options):
    mask = Masking(4, tuple(range(5)), 5 + n, LENGTH)
    return Stream(Rows(n), mask, size, batches, **options)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 20_000])
def test_every_pass_shows_every_sequence_once(n):
    order = Order(n, 3, 1)
    seen = []
    position = 0
    while position < n:
        group = order.group_at(position)
        begin, end = order.bounds(group)
        numbers = np.concatenate([np.arange(f, f + c) for f, c in order.runs(group)])
        assert begin == position and len(numbers) == end - begin
        seen += numbers[order.within(group)].tolist()
        position = end
    assert sorted(seen) == list(range(n))
    assert n < 3 or seen != sorted(seen)


def test_a_run_starts_anywhere_and_goes_through_passes():
    whole = list(stream().epoch())
    assert len(whole) == 100 and all(len(b["sample_ids"]) == 32 for b in whole)
    numbers = np.concatenate([b["sample_ids"] for b in whole])
    for begin in range(0, 3000, 1000):
        assert sorted(numbers[begin : begin + 1000]) == list(range(1000))
    assert (numbers[:1000] != numbers[1000:2000]).any()
    for start in (1, 31, 32, 99):
        again = next(stream().epoch(start=start))
        for name, value in whole[start].items():
            np.testing.assert_array_equal(again[name], value)


def test_micro_batches_cut_the_same_sequences_out_of_a_global_batch():
    large = np.concatenate([b["sample_ids"] for b in stream(size=64, batches=20).epoch()])
    small = np.concatenate([b["sample_ids"] for b in stream(size=16, batches=80).epoch()])
    np.testing.assert_array_equal(large, small)


def test_one_pass_fills_up_its_last_batch_with_rows_that_do_not_count():
    batches = list(stream(n=70, size=32, batches=None, shuffle=False).epoch())
    assert [int((b["sample_ids"] >= 0).sum()) for b in batches] == [32, 32, 6]
    assert batches[-1]["token_ids"].shape == (32, LENGTH) and not batches[-1]["weights"][6:].any()


def test_language_model_predicts_every_next_token():
    batch = stream(objective="lm").batch(0)
    assert batch["positions"].shape == (32, LENGTH - 1)
    np.testing.assert_array_equal(batch["labels"], batch["token_ids"][:, 1:])
    assert (batch["weights"] == 1).all() and not batch["segment_ids"].any()


def test_unilm_predicts_the_second_segment_after_a_border():
    batch = stream(objective="unilm", sep_id=SEP).batch(0)
    rows = Rows(1000)
    borders = set()
    for ids, segments, weights, labels, sample in zip(
        batch["token_ids"],
        batch["segment_ids"],
        batch["weights"],
        batch["labels"],
        batch["sample_ids"],
    ):
        border = int(np.argmax(segments)) - 1
        borders.add(border)
        original = rows.read(int(sample), 1)[0][0]
        assert ids[border] == SEP and not segments[: border + 1].any()
        assert segments[border + 1 :].all()
        np.testing.assert_array_equal(ids[:border], original[:border])
        np.testing.assert_array_equal(ids[border + 1 :], original[border:-1])
        np.testing.assert_array_equal(weights, segments[1:].astype(np.float32))
        np.testing.assert_array_equal(labels, ids[1:])
    assert len(borders) > 5


def test_errors_of_the_reading_thread_come_out():
    broken = stream()

    def read(first, count):
        raise DataError("shard seven is damaged")

    broken._sequences.read = read
    with pytest.raises(DataError, match="shard seven"):
        next(broken.epoch())


def test_phases_follow_each_other_and_a_run_starts_anywhere():
    mask = Masking(4, tuple(range(5)), 1005, 2 * LENGTH)
    long = Stream(Rows(300, 2 * LENGTH), mask, 32, 7)
    phases = Phases(stream(batches=20), long)
    whole = list(phases.epoch())
    assert [b["token_ids"].shape for b in whole] == [(32, LENGTH)] * 20 + [(32, 2 * LENGTH)] * 7
    assert phases.steps_per_epoch() == 27 and phases.border == 20
    assert phases.shapes == [(32, LENGTH), (32, 2 * LENGTH)]
    for start in (1, 19, 20, 21, 26):
        again = list(phases.epoch(start=start))
        assert len(again) == 27 - start
        for name, value in whole[start].items():
            np.testing.assert_array_equal(again[0][name], value)
    assert not list(phases.epoch(start=27))


def test_leaving_a_pass_early_ends_its_thread():
    import threading

    before = threading.active_count()
    batches = stream().epoch()
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_nothing_to_read_is_an_error():
    with pytest.raises(DataError, match="held out"):
        Stream(Rows(0), None, 4)
