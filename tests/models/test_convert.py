"""``amp-xla convert`` of each family of encoders; weights that a language model starts from."""

import json
import shutil
import types

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K
from amp_xla.commands import convert
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import AmpXlaError, DataError
from amp_xla.export import google as google_format
from amp_xla.models.language_model import LanguageModel
from amp_xla.models.weights import google
from amp_xla.training.step import initialize_variables
from tests.models.test_hugging_face import FAMILIES, FOLDERS, VOCABULARY
from tests.support import google_folder

# Family -> what is left out
LEFT_OUT = {
    "bert_old": "left out: cls.predictions.decoder.bias (equal to the bias); "
    "cls.predictions.decoder.weight (equal to the embeddings)",
    "ernie": "embeddings.task_type_embeddings.weight (its first row is added to the embeddings",
    "roformer": "encoder.embed_positions.weight (constants)",
}
ON_BOTH, LONG = ("albert", "bert_old"), ("bert", "bert_zip", "electra", "macbert", "roformer_v2")
CASES = [
    pytest.param(family, marks=pytest.mark.long if family in LONG else pytest.mark.once)
    for family in sorted(set(FAMILIES) - set(ON_BOTH))
]


def converted(source, to, kind, capsys):
    K.clear_session()
    convert.main(["--source", str(source), "--to", str(to), "--format", kind])
    return str(capsys.readouterr().out)


def tensors(folder):
    opened = google.pretrained(str(folder)).stored()
    return {name: np.asarray(tensor.read()) for name, tensor in opened.items()}


@pytest.mark.parametrize("family", [*ON_BOTH, *CASES])
def test_there_and_back_all_bits_are_the_same(family, tmp_path, capsys):
    source, asked = tmp_path / "source", np.load(str(FOLDERS / family / "hidden.npz"))
    shutil.copytree(str(FOLDERS / family), str(source))
    for name, content in Tokenizer(VOCABULARY).assets.items():
        (source / name).write_bytes(content)
    said = converted(source, tmp_path / "google", "google", capsys)
    assert LEFT_OUT.get(family, "") in said
    back = converted(tmp_path / "google", tmp_path / "hf", "hf", capsys)
    again = converted(tmp_path / "hf", tmp_path / "again", "google", capsys)
    assert "left out" not in back + again
    first, last = tensors(tmp_path / "google"), tensors(tmp_path / "again")
    assert first.keys() == last.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, last[name], name)
    given, written = tensors(source), tensors(tmp_path / "hf")
    assert f"{len(written)} of {len(given)} tensors" in said
    assert len(given) - len(written) == {"bert_old": 2, "nezha": 2}.get(
        family, int("left out" in said)
    )
    for name, value in given.items():
        if family == "ernie" and "token_type" in name:
            assert not np.array_equal(value, written[name])  # task 0 is added
        elif name in written:
            np.testing.assert_array_equal(value, written[name], name)
        else:
            assert name in said
    if family == "nezha":
        path = tmp_path / "google" / "bert_config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
        with pytest.raises(DataError, match='Add "model_type": "nezha" or "roformer"'):
            google.pretrained(str(path.parent))
        path.write_text(json.dumps(config))
    if family == "macbert":
        assert "bert4keras fixes layer_norm_eps to 1e-12, here 0.001" in said
        return
    real = asked["tokens"] > 0
    states = google_folder.answers(tmp_path / "google", asked["tokens"], asked["segments"])
    np.testing.assert_allclose(states[real], asked["hidden"][real], rtol=0, atol=1e-5)


def test_of_a_checkpoint_heads_come_along_and_optimizers_do_not(tmp_path, capsys):
    """Google's has slots of its optimizer; bert4keras' ``save_weights_as_checkpoint``, no more."""
    heads = {
        "bert/pooler/dense/kernel": (16, 16), "bert/pooler/dense/bias": (16,),
        "cls/seq_relationship/output_weights": (2, 16), "cls/seq_relationship/output_bias": (2,),
    }  # fmt: skip
    random = np.random.RandomState(1)
    added = {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in heads.items()}
    slots = {f"{name}/adam_{x}": value for name, value in added.items() for x in "mv"}
    google_folder.write(tmp_path / "a", {**added, **slots, "global_step": np.array(7)})
    path = tmp_path / "a" / google_folder.NAME
    path.write_text(json.dumps({**google_folder.CONFIG, "layer_norm_eps": 1e-3}))
    said = converted(tmp_path / "a", tmp_path / "hf", "hf", capsys)
    names = "bert/pooler/dense/bias/adam_m, bert/pooler/dense/bias/adam_v, bert/pooler/dense/kernel"
    assert f"left out: {names}/adam_m and 6 others (of an optimizer)" in said
    assert 'AutoModelForPreTraining.from_pretrained("' in said
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert tensors(tmp_path / "hf")["cls.seq_relationship.weight"].shape == (2, 16)
    said = converted(tmp_path / "hf", tmp_path / "b", "google", capsys)
    assert "answers differ: bert4keras fixes layer_norm_eps" in said
    for family in ("nezha", "roformer_v2"):  # whose epsilon only old versions fix
        config = {"model_type": family, "layer_norm_eps": 1e-3}
        model = types.SimpleNamespace(config=config, tensors={}, formula="")
        said = google_format.describe(model, "folder")[0]
        assert ("answers differ" in said) == (backend.kind() == "tf1")
        model.tensors["cls/predictions/output_bias"] = None  # in whose norm every version fixes it
        assert "answers differ" in google_format.describe(model, "folder")[0]
    random_ids = random.randint(5, 20, [2, 6])
    inputs = (random_ids, random_ids * 0)
    answers = google_folder.answers(tmp_path / "b", *inputs, with_mlm=True, with_nsp=True)
    models = backend.bert4keras("models")
    K.clear_session()
    model = models.build_transformer_model(
        str(tmp_path / "b/bert_config.json"), str(tmp_path / "a/bert_model.ckpt"),
        with_mlm=True, with_nsp=True, return_keras_model=False,
    )  # fmt: skip
    for found, expected in zip(answers, model.model.predict(list(inputs))):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    if backend.kind() == "tf2":
        return  # bert4keras writes checkpoints on TensorFlow 1 only
    (tmp_path / "c").mkdir()
    model.save_weights_as_checkpoint(str(tmp_path / "c" / "bert_model.ckpt"))
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(str(tmp_path / "a" / name), str(tmp_path / "c"))
    assert "left out" not in converted(tmp_path / "c", tmp_path / "hf2", "hf", capsys)
    first, last = tensors(tmp_path / "hf"), tensors(tmp_path / "hf2")
    assert first.keys() == last.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, last[name], name)


@pytest.mark.once
def test_what_cannot_be_converted_is_refused_and_nothing_is_written(tmp_path, capsys):
    whole = google_folder.write(tmp_path / "whole")
    half = google_folder.write(tmp_path / "half", {"cls/predictions/output_bias": None})
    for source, to, problem in (
        (tmp_path / "none", "to", "none is not a folder"),
        (whole / "bert_model.ckpt", "to", "bert_model.ckpt is not a folder"),
        (whole, "half", "half exists already"),
        (half, "to", "has no tensor cls/predictions/output_bias"),
        ("", "to", "name both folders: amp-xla convert SOURCE TO"),
    ):
        with pytest.raises(AmpXlaError, match=problem):
            converted(source, tmp_path / to, "hf", capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "whole"]


@pytest.mark.usefixtures("cleared")
@pytest.mark.parametrize("rows", [20, 18])
def test_an_encoder_gets_a_new_head_and_may_have_more_rows_than_tokens(rows, tmp_path, capfd):
    """As ERNIE 3.0: 40,000 rows, 39,979 tokens."""
    shapes = google_folder.tensors(google_folder.CONFIG, language_model=True)
    head = {name: None for name in shapes if name.startswith("cls/")}
    folder = google_folder.write(tmp_path / "encoder", head)
    lm = LanguageModel({**google_folder.CONFIG, "vocab_size": rows}, 16, "unilm", str(folder))
    assert "has no head that predicts tokens: a new one is trained" in capfd.readouterr().err
    initialize_variables()
    name = "bert/embeddings/word_embeddings"
    stored = google.pretrained(str(folder)).take({name: shapes[name]})[name]
    table = K.get_value(lm.transformer.layers["Embedding-Token"].embeddings)
    np.testing.assert_array_equal(table[:rows], stored[:rows])
    assert not table[rows:].any() and lm.config["vocab_size"] == rows
