"""A recipe is one file: an unknown one, put into any folder, does all that a recipe can."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration import third_recipe
from tests.running import run_python

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(str(Path(__file__).with_name("third_recipe.py")), str(folder / "majority.py"))
    return folder


SETTINGS = ("--", "--name", "a", "--rows", "4", "--passes", "10")


def command(folder: Path, name: str, *words: str, stdin: str = "") -> str:
    done = run_python("-m", "amp_xla", name, *words, cwd=folder, stdin=stdin)
    assert done.code == 0, done.err
    return done.out + done.err


@pytest.fixture(scope="module")
def trained(folder):
    said = command(folder, "train", "--recipe", "majority.py", *SETTINGS)
    assert "done: best dev accuracy" in said
    return folder / "runs" / "majority" / "a"


def test_it_trains_and_leaves_its_settings(trained):
    config = json.loads((trained / "config.json").read_text())
    assert (config["rows"], config["breadth"], config["run"]["name"]) == (4, 16, "a")
    assert json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 100


def test_it_is_resumed_with_what_may_change_and_not_with_what_may_not(trained, folder):
    words = ["train", "--recipe", str(folder / "majority.py"), *SETTINGS, "--resume"]
    said = command(folder, *words, "--colour", "blue", "--log-every", "5")
    assert "resumed from step-00000100" in said
    done = run_python("-m", "amp_xla", *words, "--learning-rate", "0.5", cwd=folder)
    assert done.code == 2 and "setting learning_rate: 0.02 then, 0.5 now" in done.err


def test_it_predicts_where_the_user_says_which_file_it_is(trained, folder):
    # Texts it was trained on: forty are too few to ask it about others.
    texts, labels = third_recipe.texts(40, 1)
    text = "".join(" ".join(map(str, words)) + "\n" for words in texts)
    said = command(folder, "predict", "--run", str(trained), "--recipe", "majority.py", stdin=text)
    answers = [line.split("\t")[0] == "high" for line in said.splitlines()[: len(texts)]]
    assert sum(answer == bool(label) for answer, label in zip(answers, labels)) >= 36
    done = run_python("-m", "amp_xla", "predict", "--run", str(trained), cwd=folder, stdin=text)
    assert done.code == 2 and "majority" in done.err and "--recipe" in done.err


@pytest.mark.slow
def test_it_is_inspected_and_rehearsed(folder):
    said = command(folder, "inspect", "--recipe", "majority.py", "--", "--breadth", "64")
    assert "a virtual GPU 8.0" in said and "Mix" in said
    assert (folder / "runs" / "majority" / "inspect" / "amp.json").is_file()
    said = command(folder, "rehearse", "--recipe", "majority.py", "--steps", "4")
    assert "suggested constant loss scale" in said
    assert (folder / "runs" / "majority" / "rehearse" / "rehearsal.json").is_file()


def test_what_has_no_layers_to_compute_again_says_so(folder):
    words = ("--recipe", "majority.py", "--", "--name", "again", "--recompute")
    done = run_python("-m", "amp_xla", "train", *words, cwd=folder)
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("error: --recompute: the loss depends on 0 layers")
    assert not (folder / "runs" / "majority" / "again").exists()


@pytest.mark.long
def test_it_can_be_tuned(folder):
    words = ["--recipe", "majority.py", "--steps", "2", "--rounds", "2", "--minutes", "1"]
    assert "fastest: " in command(folder, "tune", *words)


@pytest.mark.parametrize(
    "recipe, message",
    [
        ("nowhere.py", "there is no recipe"),
        ("files/no-name.py", "needs another name"),
        ("files/json.py", "needs another name"),
        ("nothing", "there is no recipes/nothing.py"),
    ],
)
def test_a_recipe_that_cannot_be(tmp_path, recipe, message):
    (tmp_path / "files").mkdir()
    for name in ("no-name.py", "json.py"):
        (tmp_path / "files" / name).write_text("raise SystemExit(9)\n")
    done = run_python("-m", "amp_xla", "train", "--recipe", recipe, cwd=tmp_path)
    assert done.code == 2 and message in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
