"""The defaults of a classifier follow from its weights, its texts, and the run it resumes."""

import json

import pytest

from amp_xla.config import flat, parse
from amp_xla.errors import SettingsError
from amp_xla.models.fine_tuning import describe
from amp_xla.training import checkpoint
from amp_xla.training.state import settings_of
from recipes import classification, jax_classification
from tests.support import checkpoints as runs

pytestmark = pytest.mark.once
SHAPE = dict(vocab_size=9, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
SCRATCH = dict(learning_rate=5e-4, epochs=8, batch_size=16, token_dropout=0.1, label_smoothing=0.1)


def published(rate, epochs=3, batch_size=32):
    return dict(
        learning_rate=rate, epochs=epochs, batch_size=batch_size, token_dropout=0.0,
        label_smoothing=0.0,
    )  # fmt: skip


@pytest.fixture(params=[classification, jax_classification], ids=["graph", "jax"])
def recipe(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {"wide": 768, "minilm": 384, "short": 192, "long": 512}
    for name, width in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
        shape = {**SHAPE, "hidden_size": width}
        (tmp_path / name / "bert_config.json").write_text(json.dumps(shape))
    # Runs of this project's pretraining have a config.json beside the weights.
    for name, steps in (("short", 1500), ("long", 500_000)):
        config = json.dumps({"steps": steps, "global_batch": 64})
        (tmp_path / name / "config.json").write_text(config)
    for texts in (140, 2076, 3200):
        (tmp_path / f"{texts}.tsv").write_text("a text\t1\n" * texts)
    return request.param


def settings(recipe, *words):
    config = flat(recipe.recipe.parse(words))
    return {name: config[name] for name in SCRATCH}


def with_texts(recipe, bert, texts, *words):
    file = f"{texts}.tsv"
    return settings(recipe, "--bert", bert, "--train", file, "--dev", file, *words)


@pytest.mark.parametrize(
    "bert, texts, words, expected",
    [
        ("short", 3200, "", SCRATCH),
        ("wide", 3200, "", published(2e-5)),
        ("long", 3200, "", published(1e-4)),
        ("minilm", 2076, "", published(1e-4, 3, 16)),
        ("minilm", 140, "", published(3e-4, 20, 16)),
        ("minilm", 2076, "--train-fraction 0.3", published(3e-4, 8, 16)),
        ("wide", 140, "--learning-rate 5e-4 --batch-size 8 --epochs 2", published(5e-4, 2, 8)),
    ],
)
def test_defaults_follow_from_weights_and_texts(recipe, bert, texts, words, expected):
    assert settings(recipe) == SCRATCH
    assert with_texts(recipe, bert, texts, *words.split()) == expected


@pytest.mark.parametrize("bert, start", [
    (None, "training from random weights"),
    ("short", "fine-tuning a short pretraining run (defaults of training from scratch)"),
])  # fmt: skip
def test_the_first_line_of_a_run_has_the_values(recipe, bert, start):
    line = describe({**SCRATCH, "bert": bert}, {}, steps=42)
    values = "learning_rate 0.0005, epochs 8; only 42 updates; try --epochs 20"
    assert line == f"{start}: {values}"


def test_a_name_of_a_hub_is_not_a_folder(recipe):
    with pytest.raises(SettingsError, match="--bert hfl/macbert: there is no such folder"):
        settings(recipe, "--bert", "hfl/macbert")


@pytest.mark.parametrize("before", [published(2e-5), SCRATCH, published(2e-5, 5)])
def test_a_resumed_run_keeps_its_defaults(recipe, tmp_path, before):
    """The folder of the weights may have changed or gone."""
    words = [w for k, v in before.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    name = recipe.__name__.rpartition(".")[2]
    run = tmp_path / "runs" / name / "a"
    (run / "checkpoints").mkdir(parents=True)
    (run.parent / "latest").symlink_to("a")
    state = runs.state(1)
    config = parse(recipe.Config, ["--bert", "wide", *words])
    state["identity"]["config"] = settings_of(config)
    checkpoint.write(run / "checkpoints", runs.tensors(1), state, {})
    for bert in ("minilm", "nowhere"):
        assert with_texts(recipe, bert, 140, "--resume") == before
        longer = with_texts(recipe, bert, 140, "--name", "a", "--resume", "--epochs", "9")
        assert longer == {**before, "epochs": 9}
