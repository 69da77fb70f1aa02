"""A recipe is one file: an unknown one, put into any folder, does all that a recipe can."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support import tiny
from tests.support.commands import CLI

pytestmark = pytest.mark.once
SETTINGS = ("--", "--name", "a", "--hidden", "32", "--epochs", "10")


@pytest.fixture(scope="module")
def command(command):
    shutil.copy(tiny.__file__, str(command.folder / "majority.py"))
    return command


@pytest.fixture(scope="module")
def trained(command):
    done = command(CLI, "train", "--recipe", "majority.py", *SETTINGS)
    assert done.code == 0 and "done: best dev loss" in done.err, done.err
    return command.folder / "runs" / "majority" / "a"


def test_it_trains_and_is_resumed(trained, command):
    config = json.loads((trained / "config.json").read_text())
    assert (config["hidden"], config["batch_size"], config["run"]["name"]) == (32, 4, "a")
    assert command.metrics("majority", "a")[-1]["step"] == 80
    words = [CLI, "train", "--recipe", str(command.folder / "majority.py"), *SETTINGS, "--resume"]
    done = command(*words, "--log-every", "5")  # may change
    assert done.code == 0 and "resumed from step-00000080" in done.err, done.err


def test_it_predicts_where_the_user_says_which_file_it_is(trained, command):
    (command.folder / "texts.txt").write_text("38 39 40\n1 2 3\n")
    words = [CLI, "predict", str(trained), "texts.txt"]
    said = command(*words, "--recipe", "majority.py")
    answers = [line.split("\t")[0] for line in said.out.splitlines()]
    assert len(answers) == 2 and set(answers) <= {"high", "low"}, said.err
    done = command(*words)
    assert done.code == 2 and "majority" in done.error and "--recipe" in done.error


@pytest.mark.parametrize(
    "words, function",
    [
        ("predict RUN --query salt", "rank"), ("predict RUN --beams 2", "generate"),
        ("fill RUN --text [MASK]", "fill"), ("evaluate RUN --file texts.txt", "scored"),
        ("export RUN", "exportable"),
    ],
)  # fmt: skip
def test_what_it_lacks_is_named(trained, command, words, function):
    (command.folder / "texts.txt").write_text("38 39 40\n1 2 3\n")
    words = [str(trained) if word == "RUN" else word for word in words.split()]
    done = command(CLI, *words, "--recipe", "majority.py")
    assert done.code == 2 and f"recipe majority has no `{function}`; " in done.error, done.err


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("no-name.py", "raise SystemExit(9)\n", "needs another name"),
        ("plain.py", "def main(argv):\n    raise SystemExit(9)\n", "has no object `recipe` of"),
        ("other.py", "recipe = 'classification'\n", "has no object `recipe` of"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(command, name, text, message):
    (command.folder / name).write_text(text)
    done = command(CLI, "train", "--recipe", name)
    assert done.code == 2 and f"{name} {message}" in done.error
