"""Hugging Face folders of every family: transformers' hidden states, and errors of one line."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from amp_xla.backend import K
from amp_xla.models import dropout, encoders, packed
from amp_xla.models.weights import WeightsError, google
from tests.models.google_folder import Change, cut, without

# Written by transformers: see transformers_folders.py.
FOLDERS = Path(__file__).resolve().parent / "hugging_face"
FAMILIES = sorted(path.name for path in FOLDERS.iterdir())


def hidden(folder: Path) -> Tuple[np.ndarray, Any]:
    """Hidden states of real tokens from this project, and from transformers."""
    wanted = np.load(str(folder / "hidden.npz"))
    K.clear_session()
    with dropout.inference():
        model = encoders.transformer(str(folder)).model
    states = model.predict([wanted["tokens"], wanted["segments"]])
    assert np.isfinite(model.predict([np.zeros([2, 5])] * 2)).all()  # rows of padding alone
    return states, wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_transformers(family: str, capfd: Any) -> None:
    states, wanted = hidden(FOLDERS / family)
    real = wanted["tokens"] > 0
    assert np.abs(wanted["hidden"][real]).max() > 0.5
    np.testing.assert_allclose(states[real], wanted["hidden"][real], atol=1e-4)
    assert np.isfinite(states).all()
    said = capfd.readouterr().err
    unused = {"bert": "cls.predictions (5)", "bert_old": "cls.seq_relationship (2)"}
    assert unused.get(family, "") in said and said.count("\n") <= 1


@pytest.mark.parametrize("family", ["nezha", "roformer_v2"])
def test_a_checkpoint_of_the_same_weights_is_the_same_model(family: str, tmp_path: Path) -> None:
    """As bert4keras writes it; without model_type, the family follows from the tensors."""
    states, _ = hidden(FOLDERS / family)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(str(FOLDERS / family / "hidden.npz"), str(folder))
    opened = google.pretrained(str(FOLDERS / family))
    with dropout.inference():
        transformer = encoders.build(opened.config)
    google.write_tensors(str(folder / "model.ckpt"), opened.take(encoders.tensors(transformer)))
    config = dict(opened.config)
    kind = config.pop("model_type")
    path = folder / "bert_config.json"
    path.write_text(json.dumps(config))
    if kind == "nezha":
        with pytest.raises(WeightsError, match='Add "model_type": "nezha" or "roformer"'):
            google.pretrained(str(folder))
        path.write_text(json.dumps({**config, "model_type": kind}))
    again, _ = hidden(folder)
    np.testing.assert_allclose(again, states, atol=1e-6)


@pytest.mark.parametrize("family", ["electra", "nezha", "roformer_v2"])
def test_packed_rows_are_the_texts_alone(family: str) -> None:
    alone, wanted = hidden(FOLDERS / family)
    counts = (wanted["tokens"] > 0).sum(1)[:2]
    K.clear_session()
    with dropout.inference():
        model = encoders.transformer(str(FOLDERS / family), extend=packed.extended).model
    row = {name: [wanted[name][i, :n] for i, n in enumerate(counts)] for name in wanted.files}
    positions = np.concatenate([np.arange(n) for n in counts])
    slots = np.repeat([0, 1], counts)
    inputs = [np.concatenate(row["tokens"]), np.concatenate(row["segments"]), positions, slots]
    states = model.predict(
        [np.append(x, [fill] * 2)[None] for x, fill in zip(inputs, (0, 0, 0, -1))]
    )
    np.testing.assert_allclose(
        states[0, :-2], np.concatenate([alone[i, :n] for i, n in enumerate(counts)]), atol=1e-4
    )


TABLE = "embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def replaced(value: Optional[np.ndarray], name: str = QUERY) -> Change:
    def change(folder: Path) -> None:
        values = load_file(str(folder / "model.safetensors"))
        values.pop(QUERY)
        if value is not None:
            values[name] = value
        save_file(values, str(folder / "model.safetensors"))

    return change


def config(**values: Any) -> Change:
    def change(folder: Path) -> None:
        old = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**old, **values}))

    return change


def pickled(value: Any, legacy: bool = False) -> Change:
    """A pytorch_model.bin in the old format, or a plain pickle."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with open(str(folder / "pytorch_model.bin"), "wb") as file:
            for part in [0x1950A86A20F9469CFC6C, 1001, {}] if legacy else []:
                pickle.dump(part, file, 2)
            pickle.dump(value, file, 2)

    return change


class Command:
    def __reduce__(self) -> Any:
        return os.system, ("touch $OLDPWD/ran; touch ran",)


SQUARE = np.zeros([16, 16], np.float32)
CASES: Dict[str, Tuple[Change, Tuple[str, ...]]] = {
    "renamed": (replaced(SQUARE, QUERY.replace("query", "querry")), ("unused tensor", "querry")),
    "missing": (replaced(None), ("model.safetensors has no tensor", QUERY)),
    "wrong shape": (replaced(SQUARE[1:]), (QUERY, "is [15, 16], config.json needs [16, 16]")),
    "not a number": (replaced(SQUARE * np.nan), (QUERY, "holds NaN")),
    "header cut": (cut("model.safetensors", 0.01), ("model.safetensors is truncated",)),
    "code": (pickled({"a": Command()}, legacy=True), ("uses posix.system", "nothing but tensors")),
    "code at once": (pickled(Command()), ("uses posix.system",)),
    "no tensors": (pickled({"a": 1}, legacy=True), ("pytorch_model.bin",)),
    "no weights": (without("model.safetensors"), ("model.safetensors or pytorch_model.bin",)),
    "roberta": (config(model_type="roberta"), ('model_type "roberta"', "allowed: bert, albert")),
    "relative": (config(position_embedding_type="relative_key"), ("position_embedding_type",)),
    "of two kinds": (config(model_type="albert", embedding_size=8), ("has no tensor bert.",)),
}  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("case", sorted(CASES))
def test_what_is_wrong_with_a_folder_is_one_line(case: str, tmp_path: Path) -> None:
    change, words = CASES[case]
    folder = tmp_path / "folder"
    folder.mkdir()
    opened = google.pretrained(str(FOLDERS / "bert"))
    save_file(
        {name: np.array(stored.read()) for name, stored in opened.stored().items()},
        str(folder / "model.safetensors"),
    )
    shutil.copy(str(FOLDERS / "bert" / "config.json"), str(folder))
    change(folder)
    K.clear_session()
    with pytest.raises(WeightsError) as caught, dropout.inference():
        encoders.transformer(str(folder))
    said = str(caught.value)
    assert "\n" not in said and str(folder) in said
    for word in words:
        assert word in said
    assert not list(tmp_path.rglob("ran")) and not Path("ran").exists()


@pytest.mark.once
def test_damaged_files_of_pytorch_and_lost_parts(tmp_path: Path) -> None:
    def refused(folder: Path, words: str) -> None:
        with pytest.raises(WeightsError, match=words), dropout.inference():
            K.clear_session()
            encoders.transformer(str(folder))

    for name in ("bert_zip", "bert_old", "bert"):
        shutil.copytree(str(FOLDERS / name), str(tmp_path / name))
    for name in ("bert_zip", "bert_old"):
        path = tmp_path / name / "pytorch_model.bin"
        whole = path.read_bytes()
        for keep in (0.2, 0.97):
            path.write_bytes(whole[: int(len(whole) * keep)])
            refused(tmp_path / name, "pytorch_model.bin.* (damaged|truncated)")
        path.write_bytes(whole)
    table = google.pretrained(str(tmp_path / "bert_zip")).stored()[TABLE].read().tobytes()
    data = bytearray((tmp_path / "bert_zip" / "pytorch_model.bin").read_bytes())
    data[data.index(table)] ^= 1
    (tmp_path / "bert_zip" / "pytorch_model.bin").write_bytes(bytes(data))
    refused(tmp_path / "bert_zip", f"pytorch_model.bin: tensor {TABLE} is damaged")
    (part, *_) = sorted((tmp_path / "bert").glob("model-*.safetensors"))
    part.unlink()
    refused(tmp_path / "bert", f"index.json names {part.name}, which is not in")


@pytest.mark.once
@pytest.mark.long
@pytest.mark.network
@pytest.mark.timeout(3600)
def test_other_weights_that_transformers_writes_now(peers: str, tmp_path: Path) -> None:
    command = [peers, "-m", "tests.models.transformers_folders", str(tmp_path / "folders"), "7"]
    subprocess.run(command, check=True)
    for folder in sorted((tmp_path / "folders").iterdir()):
        states, wanted = hidden(folder)
        real = wanted["tokens"] > 0
        np.testing.assert_allclose(states[real], wanted["hidden"][real], atol=1e-4)
