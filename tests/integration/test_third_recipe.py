"""A recipe is one file: an unknown one, put into any folder, does all that a recipe can."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration import third_recipe
from tests.integration.commands import Commands

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(str(Path(__file__).with_name("third_recipe.py")), str(folder / "majority.py"))
    return folder


SETTINGS = ("--", "--name", "a", "--rows", "4", "--passes", "10")


CLI = "amp_xla.commands.cli"


@pytest.fixture(scope="module")
def command(server, folder, tmp_path_factory):
    return Commands(server, folder, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def trained(command):
    done = command(CLI, "train", "--recipe", "majority.py", *SETTINGS)
    assert done.code == 0 and "done: best dev accuracy" in done.err, done.err
    return command.folder / "runs" / "majority" / "a"


def test_it_trains_and_leaves_its_settings(trained):
    config = json.loads((trained / "config.json").read_text())
    assert (config["rows"], config["breadth"], config["run"]["name"]) == (4, 16, "a")
    assert json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 100


def test_it_is_resumed_with_what_may_change_and_not_with_what_may_not(trained, command):
    recipe = str(command.folder / "majority.py")
    words = [CLI, "train", "--recipe", recipe, *SETTINGS, "--resume"]
    done = command(*words, "--colour", "blue", "--log-every", "5")
    assert done.code == 0 and "resumed from step-00000100" in done.err, done.err
    done = command(*words, "--learning-rate", "0.5")
    assert done.code == 2 and "setting learning_rate: 0.02 then, 0.5 now" in done.error


def test_it_predicts_where_the_user_says_which_file_it_is(trained, command):
    # Texts it was trained on: forty are too few to ask it about others.
    texts, labels = third_recipe.texts(40, 1)
    lines = [" ".join(map(str, words)) + "\n" for words in texts]
    (command.folder / "texts.txt").write_text("".join(lines))
    words = [CLI, "predict", str(trained), "texts.txt"]
    said = command(*words, "--recipe", "majority.py").out
    answers = [line.split("\t")[0] == "high" for line in said.splitlines()]
    assert sum(answer == bool(label) for answer, label in zip(answers, labels)) >= 36
    done = command(*words)
    assert done.code == 2 and "majority" in done.error and "--recipe" in done.error


@pytest.mark.slow
def test_it_is_inspected_and_rehearsed(command):
    words = ["--recipe", "majority.py"]
    done = command(CLI, "inspect", *words, "--", "--breadth", "64")
    assert done.code == 0 and "a virtual GPU 8.0" in done.out and "Mix" in done.out, done.err
    runs = command.folder / "runs" / "majority"
    assert (runs / "inspect" / "amp.json").is_file()
    done = command(CLI, "rehearse", *words, "--steps", "4")
    assert done.code == 0 and "suggested constant loss scale" in done.out, done.err
    assert (runs / "rehearse" / "rehearsal.json").is_file()


def test_what_has_no_layers_to_compute_again_says_so(command):
    words = ("--recipe", "majority.py", "--", "--name", "again", "--recompute")
    done = command(CLI, "train", *words)
    assert done.code == 2
    assert done.error.startswith("error: --recompute: the loss depends on 0 layers")
    assert not (command.folder / "runs" / "majority" / "again").exists()


@pytest.mark.long
def test_it_can_be_tuned(command):
    words = ["--recipe", "majority.py", "--steps", "2", "--rounds", "2", "--minutes", "1"]
    assert "fastest: " in command(CLI, "tune", *words).out


def test_a_recipe_that_cannot_be(command):
    (command.folder / "files").mkdir()
    for name in ("no-name.py", "json.py"):
        (command.folder / "files" / name).write_text("raise SystemExit(9)\n")
    for recipe, message in (
        ("nowhere.py", "there is no recipe"),
        ("files/no-name.py", "needs another name"),
        ("files/json.py", "needs another name"),
        ("nothing", "there is no recipes/nothing.py"),
    ):
        done = command(CLI, "train", "--recipe", recipe)
        assert done.code == 2 and message in done.error
        assert done.err.count("\n") == 1
