"""Weights in Google's format: one line naming file and tensor, before a model is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import numpy as np
import pytest

from amp_xla.models.weights import WeightsError, google
from amp_xla.models.weights.pretrained import TOKENS
from tests.models import google_folder
from tests.models.google_folder import Change, cut, without

DATA, INDEX = "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"


def read(
    folder: Path,
    vocab_size: Optional[int] = None,
    length: Optional[int] = None,
    language_model: bool = False,
) -> Dict[str, np.ndarray]:
    opened = google.pretrained(str(folder))
    opened.check_sizes(vocab_size, length)
    return opened.take(google_folder.tensors(opened.config, language_model))


@pytest.fixture(scope="module")
def good(tmp_path_factory: Any) -> Path:
    return google_folder.write(tmp_path_factory.mktemp("weights") / "good")


def config(**values: Any) -> Change:
    """Keys of bert_config.json set; None takes one out."""

    def change(folder: Path) -> None:
        found = {**google_folder.CONFIG, **values}
        kept = {key: value for key, value in found.items() if value is not None}
        (folder / google_folder.NAME).write_text(json.dumps(kept))

    return change


def text(data: bytes) -> Change:
    return lambda folder: (folder / google_folder.NAME).write_bytes(data)


def flip(name: str, at: float) -> Change:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int(len(data) * at)] ^= 16
        (folder / name).write_bytes(bytes(data))

    return change


def tensor(value: Any) -> Change:
    """Return a change that replaces a tensor, or removes it if ``value`` is None."""

    def change(folder: Path) -> None:
        shutil.rmtree(str(folder))
        google_folder.write(folder, {QUERY: value})

    return change


INTEGERS, NAN = np.zeros((16, 16), np.int32), np.full((16, 16), np.nan, np.float32)
CASES: Dict[str, Tuple[Change, Tuple[str, ...]]] = {
    "truncated": (cut(DATA, 0.5), ("bert_model.ckpt", "tensor", "damaged")),
    "flipped": (flip(DATA, 0.4), ("bert_model.ckpt", "tensor", "damaged")),
    "index truncated": (cut(INDEX, 0.5), (INDEX, "damaged")),
    "no data": (without(DATA), (DATA, "exists, but not")),
    "no config": (without(google_folder.NAME), ("has no bert_config.json",)),
    "not JSON": (text(b'{"vocab_size": 20,'), ("cannot read", google_folder.NAME)),
    "no hidden size": (config(hidden_size=None), ("hidden_size is missing",)),
    "layers as text": (config(num_hidden_layers="2"), ('num_hidden_layers is "2"',)),
    "heads 3": (config(num_attention_heads=3), ("num_attention_heads 3", "hidden_size 16")),
    "unknown act": (config(hidden_act="gelo"), ('hidden_act "gelo"',)),
    "layers 3": (config(num_hidden_layers=3), ("num_hidden_layers 3", "has 2 layers", "layer_2/")),
    "no tensor": (tensor(None), ("bert_model.ckpt", "has no tensor", QUERY)),
    "integers": (tensor(INTEGERS), ("bert_model.ckpt", QUERY, "is int32", "float32")),
    "not a number": (tensor(NAN), ("bert_model.ckpt", QUERY, "NaN")),
    "hidden 32": (config(hidden_size=32), (TOKENS, "[20, 16]", "[20, 32]")),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
def test_what_is_wrong_with_a_folder_is_one_line(case: str, good: Path, tmp_path: Path) -> None:
    change, words = CASES[case]
    folder = tmp_path / "bert"
    shutil.copytree(str(good), str(folder))
    change(folder)
    with pytest.raises(WeightsError) as caught:
        read(folder, vocab_size=20, length=16)
    said = str(caught.value)
    assert "\n" not in said and str(folder) in said
    for word in words:
        assert word in said


def test_texts_and_vocabulary_must_fit(good: Path) -> None:
    with pytest.raises(WeightsError, match="max_position_embeddings 32.*of 33 tokens"):
        read(good, length=33)
    with pytest.raises(WeightsError, match="vocab_size 20, but the vocabulary has 21 tokens"):
        read(good, vocab_size=21)


def test_what_is_right_is_taken(good: Path, tmp_path: Path, capfd: Any) -> None:
    values = read(good, vocab_size=20, length=32, language_model=True)
    assert {value.dtype for value in values.values()} == {np.dtype(np.float32)}
    assert {**google_folder.CONFIG, "model_type": "bert"}.items() <= (
        google.pretrained(str(good)).config.items()
    )
    assert capfd.readouterr().err == ""
    read(good)
    said = capfd.readouterr().err
    assert said == f"{good / 'bert_model.ckpt'}: not used: cls/predictions (5)\n"
    # Half precision is cast when it is loaded. No head is needed for an encoder.
    values = {QUERY: np.zeros((16, 16), np.float16), "cls/predictions/output_bias": None}
    folder = google_folder.write(tmp_path / "half", values)
    read(folder)
    with pytest.raises(WeightsError, match="cls/predictions/output_bias"):
        read(folder, language_model=True)
