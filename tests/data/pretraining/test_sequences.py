"""Packing loses nothing, and the stream of batches is a function of the position."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.pretraining import stream as streams
from amp_xla.data.pretraining.masking import Masking
from amp_xla.data.pretraining.options import LengthOptions
from amp_xla.data.pretraining.prepared import joined, to_sequences
from amp_xla.data.pretraining.stream import Phases, Stream
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
    tokens = [i for i, token in enumerate(stream) if token != SEP]
    row_begins = {i * (LENGTH - 2) for i in range(len(rows))}
    for i, start in zip(tokens, starts.tolist()):
        assert words[i] == start or i in row_begins


@given(
    st.lists(st.lists(st.lists(st.integers(5, 99), max_size=40), max_size=6), max_size=4),
    st.integers(2, 5),
)
def test_joined_rows_are_the_same_text(files, each):
    """Some of whose rows have padding in the middle, at the end of a file."""
    parts = [(np.zeros((0, LENGTH), np.int32), np.zeros((0, LENGTH), bool))]
    for documents in files:
        ids = np.array([t for d in documents for t in d], np.int32)
        counts = [len(d) for d in documents]
        parts.append(to_sequences(ids, ids % 3 == 0, counts, LENGTH, CLS, SEP))
    rows, words = (np.concatenate(arrays) for arrays in zip(*parts))
    long, begins = joined(rows, words, each)
    assert long.shape == begins.shape == (-(-len(rows) // each), each * LENGTH)
    borders = range(each, len(rows), each)
    for row, begin, part, word in zip(
        long, begins, np.split(rows, borders), np.split(words, borders)
    ):
        count = int((row != 0).sum())
        assert row[0] == CLS and row[count - 1] == SEP and not row[count:].any()
        inside = (part != 0) & (part != CLS) & (part != SEP)
        tokens = (row != SEP) & (row != CLS) & (row != 0)
        np.testing.assert_array_equal(row[tokens], part[inside])
        np.testing.assert_array_equal(begin[tokens], word[inside])
        # The end of a document stays; a full row that ends inside a document leaves no [SEP].
        ends = sum((p[1:-1] == SEP).sum() for p in part)
        ends += sum(p[-1] == SEP for p in part[:-1] if not p[-1]) + 1
        assert (row == SEP).sum() <= ends


class Rows:
    """Sequences in memory: row i is [CLS] i ... [SEP]."""

    def __init__(self, n, length=LENGTH):
        self._ids = np.full((n, length), SEP, np.int32)
        self._ids[:, 0] = CLS
        self._ids[:, 1:-1] = 5 + np.arange(n)[:, None]
        self.length = length

    def __len__(self):
        return len(self._ids)

    def read(self, first, count):
        assert first >= 0 and first + count <= len(self)
        part = self._ids[first : first + count]
        return part, np.ones_like(part, bool)


def stream(n=1000, size=32, batches=100, **options):
    mask = Masking(4, tuple(range(5)), 5 + n, LENGTH)
    return Stream(Rows(n), mask, size, batches, **options)


def samples(batches):
    return np.concatenate([batch["sample_ids"] for batch in batches])


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 20_000])
def test_every_epoch_has_every_sequence_once(n):
    order = samples(stream(n, size=n, batches=2).epoch())
    first, second = order[:n].tolist(), order[n:].tolist()
    assert sorted(first) == sorted(second) == list(range(n))
    assert n < 3 or (first != sorted(first) and first != second)


def test_groups_bound_the_memory(monkeypatch):
    monkeypatch.setattr(streams, "BLOCK", 4)
    monkeypatch.setattr(streams, "GROUP", 16)
    order = samples(stream(1002, size=1, batches=1002).epoch())
    assert sorted(order) == list(range(1002))
    for begin in range(0, 1002, 16):
        assert len(set(order[begin : begin + 16] // 4)) <= 4


def test_a_run_starts_anywhere():
    whole = list(stream().epoch())
    assert len(whole) == 100 and all(len(b["sample_ids"]) == 32 for b in whole)
    for start in (1, 31, 32, 99):
        again = next(stream().epoch(start=start))
        for name, value in whole[start].items():
            np.testing.assert_array_equal(again[name], value)
    # Small micro-batches divide the same order.
    np.testing.assert_array_equal(samples(whole), samples(stream(size=16, batches=200).epoch()))


def test_one_epoch_pads_its_last_batch_with_weight_0():
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
    names = ("token_ids", "segment_ids", "weights", "labels", "sample_ids")
    for ids, segments, weights, labels, sample in zip(*(batch[name] for name in names)):
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


def test_phases_follow_each_other_and_a_run_starts_anywhere():
    mask = Masking(4, tuple(range(5)), 1005, 2 * LENGTH)
    long = Stream(Rows(300, 2 * LENGTH), mask, 32, 7)
    phases = Phases(stream(batches=20), long)
    whole = list(phases.epoch())
    assert [b["token_ids"].shape for b in whole] == [(32, LENGTH)] * 20 + [(32, 2 * LENGTH)] * 7
    assert phases.steps_per_epoch() == 27
    assert phases.shapes == [(32, LENGTH), (32, 2 * LENGTH)]
    for start in (1, 19, 20, 21, 26):
        again = list(phases.epoch(start=start))
        assert len(again) == 27 - start
        for name, value in whole[start].items():
            np.testing.assert_array_equal(again[0][name], value)
    assert not list(phases.epoch(start=27))


def test_the_reading_thread_ends_and_its_errors_come_out():
    before = threading.active_count()
    batches = stream().epoch()
    next(batches)
    batches.close()
    assert threading.active_count() == before
    broken = stream()

    def read(first, count):
        raise DataError("shard seven is damaged")

    broken._sequences.read = read
    with pytest.raises(DataError, match="shard seven"):
        next(broken.epoch())
    with pytest.raises(DataError, match="held out"):
        Stream(Rows(0), None, 4)


def test_phases_that_do_not_fit_are_refused():
    for length in (LENGTH, 40):
        with pytest.raises(DataError, match="of 16 tokens; --phase2-length is a multiple"):
            LengthOptions(phase2_length=length).plan(LENGTH)
    with pytest.raises(DataError, match="of --steps 6 leaves a phase without an update"):
        LengthOptions(steps=6, phase2_length=64, phase2_share=0.01).plan(LENGTH)


def test_micro_batches_follow_from_the_ranks():
    amount = LengthOptions(global_batch=48, micro_batch=16)
    assert [amount.accumulation(ranks) for ranks in (1, 2, 3, 4)] == [3, 2, 1, 1]
