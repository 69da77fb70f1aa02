"""The recipe of docs/own-recipe.md in a folder of its own; commands as runs print them."""

from __future__ import annotations

import random
import shlex

import pytest

from tests.support.commands import CLI
from tests.support.killing import state
from tests.support.running import ROOT
from tests.support.snippets import blocks

(STARS,) = blocks("recipe")
OFFERS = STARS[STARS.index("recipe = Recipe(") :]
FILES = "--train reviews.tsv --dev reviews.tsv --max-length 16 --shapes 1"
FLAGS = (
    f"{FILES} --layers 1 --hidden 64 --vocab-size 40 --epochs 4 --learning-rate 2e-3 "
    "--checkpoint-every 4 --keep 99 --log-every 2"
).split()
PLACES = ["stars.py", "my own/stars.py", "classification"]


@pytest.fixture(scope="module")
def command(command):
    words, draw, folder = ["good", "bad", "book", "the", "story"], random.Random(1), command.folder
    texts = [[draw.choice(words) for _ in range(7)] for _ in range(96)]
    rows = (f"{' '.join(text)}\t{text.count('good') / 2}\n" for text in texts)
    (folder / "reviews.tsv").write_text("".join(rows))
    (folder / "FILE").write_text("good good good good\n\nbad story\n")
    for path in ("stars.py", "my own/stars.py"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(STARS)
    (folder / "less.py").write_text(
        STARS.replace(OFFERS, 'recipe = Recipe(Config, build, "mse")\n')
    )
    return command


@pytest.fixture(scope="module")
def printed(command):
    """The lines of a run of each recipe, by their first words."""

    def lines(place):
        done = command.done(CLI, "train", place, *FLAGS, "--name", f"run {PLACES.index(place)}")
        return dict(line.partition(": ")[::2] for line in done.err.splitlines())

    return {place: lines(place) for place in PLACES}


def typed(command, line, **files):
    """Type a command that was printed in the folder; FILE is the name of a file there."""
    program, *words = shlex.split(line)
    assert (command.folder / program).resolve() == ROOT / "amp-xla"
    return command.done(CLI, *(files.get(word, word) for word in words)).out


@pytest.mark.parametrize("place", PLACES)
def test_what_a_run_prints_can_be_typed(place, printed, command):
    lines = printed[place]
    good, blank, bad = typed(command, lines["predict with"]).split("\n")[:3]
    assert not blank and (place == "classification" or float(good[:4]) > float(bad[:4]) + 0.5)
    scores = typed(command, lines["score labelled samples with"], FILE="reviews.tsv")
    assert "96 samples" in scores
    said = typed(command, lines["export it with"])
    assert "its outputs differ from the run's by at most" in said


def test_a_killed_run_continues_as_its_first_lines_say(printed, command):
    words = [CLI, "train", "stars.py", *FLAGS]
    faults = {"log": str(command.folder / "log"), "faults": {"step": [9, "after"]}}
    killed = command(*words, "--name", "killed", **faults)
    assert killed.code == -9
    _, _, advice = killed.err.partition("after an interruption, the same command with ")
    done = command(*words, *shlex.split(advice.partition(" continues\n")[0]))
    assert done.code == 0 and "resumed from step-" in done.err, done.err
    runs = command.folder / "runs" / "stars"
    assert state(runs / "killed") == state(runs / "run 0")


def test_it_is_forecast_and_needs_its_file(printed, command):
    done = command.done(CLI, "plan", "stars.py", "--gpu", "h100", "--", *FLAGS)
    assert "H100" in done.out and "written: runs/stars/plan/plan.json" in done.out
    done = command(CLI, "predict", "runs/stars/run 0", "FILE")
    assert done.code == 2 and "give its path: --recipe path/to/stars.py" in done.error
    done = command(CLI, "train", "stars.py", "--layers", "1")
    assert done.code == 2 and "give --train and --dev: the built-in" in done.error


@pytest.mark.parametrize(
    "words, function",
    [
        ("predict RUN FILE", "predict"), ("predict RUN --query salt", "rank"),
        ("predict RUN --beams 2", "generate"), ("fill RUN --text [MASK]", "fill"),
        ("evaluate RUN --file reviews.tsv", "scored"), ("export RUN", "exportable"),
    ],
)  # fmt: skip
def test_what_a_recipe_lacks_is_named(printed, command, words, function):
    words = ["runs/stars/run 0" if word == "RUN" else word for word in words.split()]
    done = command(CLI, *words, "--recipe", "less.py")
    assert done.code == 2 and f"recipe less has no `{function}`; " in done.error


@pytest.mark.once
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
