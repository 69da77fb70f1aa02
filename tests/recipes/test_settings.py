"""The flags of recipes and commands: the frozen list, what may change on resume, wrong values."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import pytest

from amp_xla.commands import cli
from amp_xla.config import fields, flat
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.process import json_files
from amp_xla.process.exits import exit_code
from amp_xla.training import checkpoint
from amp_xla.training.recipe import own_recipes
from amp_xla.training.state import settings_of
from tests.support import checkpoints as runs
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
