"""Packing loses nothing, and the stream of batches is a function of the position."""

import threading
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data.masking import Masking
from amp_xla.tasks.pretraining.data.prepared import Manifest, Sequences, write_stream
from amp_xla.tasks.pretraining.data.stream import LengthOptions, Stream, read

CLS, SEP, LENGTH = 2, 3, 16


@given(st.lists(st.lists(st.lists(st.integers(5, 99), max_size=60), max_size=6), max_size=4))
def test_documents_come_back_whole_in_any_length(tmp_path_factory, files):
    """Documents of several files; a token above 60 continues the word before it."""
    folder = tmp_path_factory.mktemp("prepared")
    signed = [[[-t if t > 60 else t for t in d] for d in documents] for documents in files]
    tokenizer = masking(95).tokenizer
    units = [
        {"train": write_stream(str(folder / f"{i}.npy"), [np.array(d) for d in file], tokenizer)}
        for i, file in enumerate(signed)
    ]
    settings = {"length": LENGTH, "cls_id": CLS, "sep_id": SEP, "vocab_size": 100}
    for length in (LENGTH, 40):
        sequences = Sequences(Manifest(str(folder), settings, units), length=length)
        ids, begins = sequences.read(range(len(sequences)))
        number = 0
        for documents in files:
            stream = [t for d in documents if d for t in [*d, SEP]][:-1]
            for begin in range(0, len(stream), length - 2):
                part = stream[begin : begin + length - 2]
                padding = [0] * (length - 2 - len(part))
                assert ids[number].tolist() == [CLS, *part, SEP, *padding]
                assert begins[number, 1]
                assert (begins[number, 2 : len(part)] == (np.array(part[1:-1]) <= 60)).all()
                number += 1
        assert number == len(sequences)


class Rows:
    """Sequences in memory: row i is [CLS] i ... [SEP]."""

    length = LENGTH

    def __init__(self, n):
        self._ids = np.full((n, LENGTH), SEP, np.int32)
        self._ids[:, 0] = CLS
        self._ids[:, 1:-1] = 5 + np.arange(n)[:, None]

    def __len__(self):
        return len(self._ids)

    def read(self, numbers):
        part = self._ids[np.asarray(numbers)]
        return part, np.ones_like(part, bool)


def masking(n):
    """Masks of a vocabulary with n ordinary tokens."""
    return Masking(Tokenizer([*SPECIAL_TOKENS, *(f"token{i}" for i in range(n))]))


def stream(n=1000, size=32, batches=100, **options):
    return Stream(Rows(n), masking(n), size, batches, **options)


def samples(batches):
    return np.concatenate([batch["sample_ids"] for batch in batches])


@pytest.mark.parametrize("n", [1, 63, 65, 1000])
def test_every_epoch_has_every_sequence_once(n):
    order = samples(stream(n, size=n, batches=2).epoch())
    first, second = order[:n].tolist(), order[n:].tolist()
    assert sorted(first) == sorted(second) == list(range(n))
    assert n < 3 or (first != sorted(first) and first != second)
    if n == 1000:  # smaller batches divide the same order
        smaller = samples(stream(size=16, batches=40).epoch())
        np.testing.assert_array_equal(smaller, samples(stream(batches=20).epoch()))


def test_a_language_model_predicts_every_next_token_and_unilm_those_after_a_border():
    batch = stream(objective="unilm").batch(0)
    rows = Rows(1000)
    borders = set()
    names = ("token_ids", "segment_ids", "weights", "labels", "sample_ids")
    for ids, segments, weights, labels, sample in zip(*(batch[name] for name in names)):
        border = int(np.argmax(segments)) - 1
        borders.add(border)
        original = rows.read([sample])[0][0]
        assert ids[border] == SEP and not segments[: border + 1].any()
        assert segments[border + 1 :].all()
        np.testing.assert_array_equal(ids[:border], original[:border])
        np.testing.assert_array_equal(ids[border + 1 :], original[border:-1])
        np.testing.assert_array_equal(weights, segments[1:].astype(np.float32))
        np.testing.assert_array_equal(labels, ids[1:])
    assert len(borders) > 5
    batch = stream(objective="lm").batch(0)
    assert batch["positions"].shape == (32, LENGTH - 1)
    np.testing.assert_array_equal(batch["labels"], batch["token_ids"][:, 1:])
    assert (batch["weights"] == 1).all() and not batch["segment_ids"].any()


def test_the_reading_thread_ends_and_its_errors_come_out():
    before = threading.active_count()
    batches = stream().epoch()
    next(batches)
    batches.close()
    assert threading.active_count() == before
    broken = stream()
    broken.sequences.read = mock.Mock(side_effect=DataError("shard seven is damaged"))
    with pytest.raises(DataError, match="shard seven"):
        next(broken.epoch())
    with pytest.raises(DataError, match="held-out"):
        Stream(Rows(0), masking(1), 4, 1)


def test_the_longer_phase_has_held_out_text_however_little_is_asked_for(tmp_path):
    tokenizer = masking(95).tokenizer
    parts = ("train", "heldout")
    unit = {
        part: write_stream(str(tmp_path / f"{part}.npy"), [np.full(200, 5)], tokenizer)
        for part in parts
    }
    settings = {"length": LENGTH, "cls_id": CLS, "sep_id": SEP, "vocab_size": 100}
    manifest = Manifest(str(tmp_path), settings, [unit])
    amount = LengthOptions(steps=3, phase2_length=64, phase2_share=0.3, global_batch=4)
    phases = read(manifest, amount, 1, "mlm", masking(95))
    assert [len(list(held.epoch())) for _, held in phases] == [1, 1]
    with pytest.raises(DataError, match="of --steps 6 leaves a phase without an update"):
        LengthOptions(steps=6, phase2_length=64, phase2_share=0.01).plan(LENGTH)
