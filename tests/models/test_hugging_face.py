"""Hugging Face folders of every family have the hidden states and logits of transformers.

Classifiers are read by ``--bert`` with the pooler and exported again.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from amp_xla.backend import K
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.export import google, graph, hugging_face, saved_model, text_models
from amp_xla.export.model import HEAD
from amp_xla.models import dropout, encoders, packed
from amp_xla.models.options import EncoderOptions
from recipes.classification import recipe

# Written by transformers 5.23.0, of NEZHA and RoFormerV2 by 4.30.2 with roformer 0.4.3: the program
# is tests/models/transformers_folders.py of revision 3ca9700.
FOLDERS = Path(__file__).resolve().parent / "hugging_face"
FAMILIES = sorted(path.name for path in FOLDERS.iterdir())
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 30))]


def hidden(folder):
    """Hidden states of real tokens from this project, and from transformers."""
    wanted = np.load(str(folder / "hidden.npz"))
    K.clear_session()
    with dropout.inference():
        model = encoders.transformer(str(folder)).model
    states = model.predict([wanted["tokens"], wanted["segments"]])
    assert np.isfinite(model.predict([np.zeros([2, 5])] * 2)).all()  # rows of padding alone
    return states, wanted


# Other forms of the same tensors, or layers that a family before has.
FORMS = ("bert_old", "bert_zip", "electra", "ernie", "macbert", "roformer_v2")


@pytest.mark.parametrize(
    "family", [pytest.param(x, marks=[pytest.mark.once] * (x in FORMS)) for x in FAMILIES]
)
def test_hidden_states_are_those_of_transformers(family, capfd):
    states, wanted = hidden(FOLDERS / family)
    real = wanted["tokens"] > 0
    assert np.abs(wanted["hidden"][real]).max() > 0.5
    np.testing.assert_allclose(states[real], wanted["hidden"][real], rtol=0, atol=1e-5)
    assert np.isfinite(states).all()
    said = capfd.readouterr().err
    unused = {"bert": "cls.predictions (5)", "bert_old": "cls.seq_relationship (2)"}
    assert unused.get(family, "") in said and said.count("\n") <= 1


@pytest.mark.parametrize("family", ["nezha", pytest.param("roformer_v2", marks=pytest.mark.once)])
def test_packed_rows_are_the_texts_alone(family):
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


# Written by transformers 5.24.0, NEZHA by 4.57.6, RoFormerV2 by the package roformer 0.4.3 with
# 4.30.2, as ...ForSequenceClassification; logits.npz has tokens, segments and their logits.
CLASSIFIERS = FOLDERS.with_name("hugging_face_classifiers")
# Those of NEZHA and ERNIE are built as BERT's, RoFormer's as RoFormerV2's.
ONCE, LONG = ("albert", "roformer_v2"), ("ernie", "nezha", "roformer")
CLASSIFIED = [
    "bert", "electra", *(pytest.param(family, marks=pytest.mark.once) for family in ONCE),
    *(pytest.param(family, marks=pytest.mark.long) for family in LONG),
]  # fmt: skip


def prepared(family, folder):
    """Copy a folder of transformers and add a vocabulary; return a checkpoint of it."""
    K.clear_session()
    shutil.copytree(str(CLASSIFIERS / family), str(folder))
    for name, content in Tokenizer(VOCABULARY).assets.items():
        (folder / name).write_bytes(content)
    return SimpleNamespace(path=folder, file=lambda name: str(folder / name))


@pytest.mark.parametrize("family", CLASSIFIED)
def test_a_classifier_of_transformers_has_its_logits_and_names(family, tmp_path, monkeypatch):
    """The export of the model that ``--bert`` and the head's file make is the folder again."""
    checkpoint = prepared(family, tmp_path / "run")
    stored = load_file(str(tmp_path / "run" / "model.safetensors"))
    config = recipe.parse(["--pooling", "pooler", "--max-length", "20"])
    built = graph._built

    def loaded(build, folder):
        """Build the model from the folder, as if a run's checkpoint had these weights."""
        parts = built(build, folder or str(checkpoint.path))
        for name, variable in parts.head.items():
            value = stored[name]
            K.set_value(variable, value.T if name.endswith("weight") else value)
        return parts

    monkeypatch.setattr(graph, "_built", loaded)
    monkeypatch.setattr(graph, "restore_weights", lambda checkpoint, weights: None)
    model = text_models.classifier(
        config, checkpoint, 3, lambda x: {"probabilities": x}, "{}", ("a", "b", "c"),
        settings={"problem_type": "single_label_classification"},
    )  # fmt: skip
    wanted = np.load(str(CLASSIFIERS / family / "logits.npz"))
    ids, segments = (wanted[name].astype(np.int32) for name in ("tokens", "segments"))
    np.testing.assert_allclose(model.run(ids, segments), wanted["logits"], atol=1e-5)
    # A SavedModel is any family's graph. Folders come last: reading one clears the graph.
    saved = [saved_model] if family in ("bert", "roformer") else []
    for writer in (*saved, hugging_face, google):
        for dtype, most in {"fp16": 1e-2, "fp32": 1e-5}.items():
            if dtype == "fp32" or family == "bert":
                folder = tmp_path / f"{writer.__name__}-{dtype}"
                writer.write(model, folder, dtype)
                found = getattr(writer, "load", model.reload)(folder)(ids, segments)
                np.testing.assert_allclose(found, wanted["logits"], atol=most, err_msg=str(folder))
    folder = tmp_path / f"{hugging_face.__name__}-fp32"
    again = load_file(str(folder / "model.safetensors"))
    stored = {name.replace("ernie.", "bert."): value for name, value in stored.items()}
    constants = {n for n in stored if "task_type" in n or "embed_positions" in n}
    assert set(again) == set(stored) - constants
    for name in set(again) - {n for n in again if "token_type" in n and constants}:
        np.testing.assert_array_equal(again[name], stored[name], name)
    config = json.loads((folder / "config.json").read_text())
    (name,) = json.loads((CLASSIFIERS / family / "config.json").read_text())["architectures"]
    assert config["architectures"] == [name.replace("Ernie", "Bert")]
    assert config["problem_type"] == "single_label_classification"
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert config["label2id"] == {"a": 0, "b": 1, "c": 2}
    assert "with_pool" in google.describe(model, folder)[0] or family == "electra"
    # Without a class for the whole model: the encoder, and the head in its own file.
    encoder = dataclasses.replace(model, kind=None, formula="a formula")
    hugging_face.write(encoder, tmp_path / "encoder", "fp32")
    parts = load_file(str(tmp_path / "encoder" / "model.safetensors"))
    prefix = f"{config['model_type']}."
    parts = {prefix * ("classifier" not in name) + name: value for name, value in parts.items()}
    parts.update(load_file(str(tmp_path / "encoder" / HEAD)))
    assert set(parts) == set(again)
    assert all(np.array_equal(parts[name], again[name]) for name in again)


@pytest.mark.once
def test_a_missing_pooler_is_new_and_said(tmp_path, capfd):
    prepared("bert", tmp_path / "run")
    path = str(tmp_path / "run" / "model.safetensors")
    options = EncoderOptions(bert=str(tmp_path / "run"))
    options.classifier(30, 2, 16, pooling="pooler")
    assert "random weights" not in capfd.readouterr().err
    save_file({k: v for k, v in load_file(path).items() if "pooler" not in k}, path)
    K.clear_session()
    options.classifier(30, 2, 16, pooling="pooler")
    said = capfd.readouterr().err
    assert said.count("the pooler starts with random weights") == 1
    options.classifier(30, 2, 16, pooling="cls")
    assert "random weights" not in capfd.readouterr().err
