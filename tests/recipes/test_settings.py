"""The flags of recipes and commands: the frozen list, what may change on resume, wrong values.

The defaults of a classifier follow from its weights, its texts, and the run it resumes.
"""

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from amp_xla.commands import cli
from amp_xla.config import fields, flat, parse
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.models.fine_tuning import describe
from amp_xla.process import json_files
from amp_xla.process.exits import exit_code
from amp_xla.training import checkpoint
from amp_xla.training.recipe import own_recipes
from amp_xla.training.state import settings_of
from recipes import classification, jax_classification
from tests.support import run_folders as runs
from tests.support.running import ROOT, run_python

pytestmark = pytest.mark.once
FLAGS = Path(__file__).with_name("flags.txt")


def test_a_new_flag_is_a_decision():
    """Change flags.txt only if a user would set the new flag."""
    lines = [
        f"{recipe} {field.flag}{'  (may change on resume)' if field.may_change else ''}"
        for recipe in own_recipes()
        for field in fields(importlib.import_module(f"recipes.{recipe}").Config).values()
    ]
    assert FLAGS.read_text().splitlines() == lines


def test_the_page_of_flags_is_up_to_date_and_recipes_import_no_framework():
    """To renew it: ./amp-xla python -m scripts.flags"""
    code = "import sys; from scripts import flags; print(flags.page(), end='')"
    frameworks = "assert not {'tensorflow', 'jax', 'keras'} & set(sys.modules)"
    done = run_python("-c", f"{code}; {frameworks}")
    assert done.out == (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")


WRONG = {
    "recipes.classification": [
        "--dropout 1", "--dropout nan", "--dropout -0.1", "--hidden 200", "--seed -1",
        "--learning-rate inf", "--train-fraction 0", "--batch-size 1e9", "--max-length 1",
        f"--batch-size {'9' * 400}", "--weight-decay 1e400", "--learning-rate 1e-400",
    ],
    "recipes.pretraining": ["--steps 0", "--mask-rate 0.6", "--average 1", "--global-batch 0"],
    "recipes.reading": ["--label-smoothing 0.1", "--r-drop 1", "--stride 383"],
    "recipes.relations": ["--label-smoothing 0.1", "--r-drop 1"],
    "recipes.seq2seq": ["--max-target 22 --max-length 24"],
    "recipes.similarity": ["--r-drop 1", "--pooling cls"],
    "recipes.tagging": ["--r-drop 1 --head global_pointer", "--label-smoothing 0.1 --head crf"],
    "rehearse": ["--steps 0"],
    "prepare": ["--length 20", "--length 8", "--heldout 1", "--workers -1"],
    "header": ["--infinity -1", "--epsilon nan"],
}  # fmt: skip


@pytest.mark.parametrize(
    "where, words", [(where, words) for where, table in WRONG.items() for words in table]
)
def test_a_wrong_number_is_one_line_before_anything_is_written(
    where, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if where.startswith("recipes."):
        code = exit_code(importlib.import_module(where).main, words.split())
    else:
        code = cli.main([where, *words.split()])
    said = capsys.readouterr()
    assert code == 2 and said.out == "" and len(said.err) < 300
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert words.split()[0] in said.err
    assert "allow" in said.err or "is not a whole number" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe, words", [
    ("classification", "--epochs 3 --hidden 64 --token-dropout 0"),
    ("recommendation", "--epochs 3 --numbers 2"), ("pretraining", "--preset lamb --steps 3"),
])  # fmt: skip
def test_settings_of_another_run_are_defaults_and_flags_win(recipe, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = importlib.import_module(f"recipes.{recipe}").recipe
    config = known.parse([*words.split(), "--name", "a"])
    (tmp_path / "config.json").write_bytes(json_files.encode({**settings_of(config), "run": {}}))
    for like in (str(tmp_path), str(tmp_path / "config.json")):
        again = flat(known.parse(["--like", like, "--seed", "9"]))
        assert again == {**flat(config), "seed": 9, "name": None, "like": like}
    killed = tmp_path / "runs" / recipe / "a"  # before its first checkpoint
    killed.mkdir(parents=True)
    (killed / ".no-checkpoint-yet").touch()
    (killed.parent / "latest").symlink_to("a")
    written = {**settings_of(config), "run": {"warm_start": "w", "keep": 9}}
    (killed / "config.json").write_bytes(json_files.encode(written))
    for name, flags in (("a", ["--name", "a"]), (None, [])):
        again = flat(known.parse([*flags, "--resume", "--seed", "9"]))
        changes = {"name": name, "resume": True, "warm_start": "w", "seed": 9}
        assert again == {**flat(config), **changes}
    other = importlib.import_module("recipes.tagging").recipe
    with pytest.raises(SettingsError, match="--like .*config.json: recipes.tagging has no setting"):
        other.parse(["--like", str(tmp_path)])
    for value in ("1e400", "-1e400", "1e-400", "9" * 400):
        (tmp_path / "config.json").write_text(f'{{"run": {{}}, "learning_rate": {value}}}')
        with pytest.raises(AmpXlaError, match=f"{value} is beyond|a number of 400 digits"):
            known.parse(["--like", str(tmp_path)])
    kind = dataclasses.make_dataclass("A", [("runtime", str, "")], bases=(known.config,), frozen=1)
    with pytest.raises(SettingsError, match="setting runtime: ./amp-xla has the flag --runtime"):
        dataclasses.replace(known, config=kind).parse([])
    with pytest.raises(SettingsError, match="--like nowhere: .*No such file"):
        known.parse(["--like", "nowhere"])


def test_a_run_of_jax_needs_jax(tmp_path, monkeypatch, capsys):
    (tmp_path / "checkpoints").mkdir()
    state = {**runs.state(1), "recipe": "jax_classification"}
    checkpoint.write(tmp_path / "checkpoints", runs.tensors(1), state, {})
    (tmp_path / "texts.txt").write_text("a text\n")
    monkeypatch.setitem(sys.modules, "optax", None)
    for name in [name for name in sys.modules if name.startswith("amp_xla.jax")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["predict", str(tmp_path), str(tmp_path / "texts.txt")]) == 2
    assert re.search("^error: .*RUNTIME=jax.*\n$", capsys.readouterr().err, re.M)


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
