"""The recipe of docs/own-recipe.md in a folder of its own; commands as runs print them."""

import functools
import random
import re
import shlex

import pytest

from tests.support.commands import CLI
from tests.support.killing import state
from tests.support.running import ROOT
from tests.support.snippets import blocks

(STARS,) = blocks("recipe")
LESS = STARS[: STARS.index("recipe = Recipe(")] + 'recipe = Recipe(Config, build, "mse")\n'
FLAGS = (
    "--train reviews.tsv --dev reviews.tsv --max-length 16 --shapes 1 --layers 1 --hidden 64 "
    "--vocab-size 40 --epochs 4 --learning-rate 2e-3 --checkpoint-every 4 --keep 99"
).split()
LACKS = {
    "predict": "predict RUN FILE", "rank": "predict RUN --query salt",
    "generate": "predict RUN --beams 2", "fill": "fill RUN --text [MASK]",
    "scored": "evaluate RUN --file reviews.tsv", "exportable": "export RUN",
}  # fmt: skip
MISTAKES = [  # a part of the recipe, what somebody wrote in its place, the error
    ("return context.text_job", "context.text_job", "build must return a job, .*; found: None"),
    ("losses.weighted_mean(squares, inputs['weights'])", "squares", "loss of .*; found: shape .N"),
    ("['weights']), {}", "['weights']), {'error': squares}", "error of .* number; found: shape .N"),
    ("return {'pearson'", "{'pearson'", "evaluate must return numbers by name; found: None"),
    ("pearson(values, labels),", "values,", "evaluate must return .*; found: {'pearson': array"),
    ("context.text_step(model,", "context.step(", "build must call context.optimizer before"),
]
PLACES = ["stars.py", "my own/script.py", "topics.py", "classification"]


def with_classes():
    """Return the recipe with the changes of the page's diff; its lines are in order."""
    page = (ROOT / "docs/own-recipe.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    changed, rest = "", STARS
    for mark, line in re.findall(r"^([-+ ])(.*\n)", diff, re.MULTILINE):
        if mark != "+":
            before, found, rest = rest.partition(line)
            assert found, line
            changed += before
        changed += line * (mark != "-")
    return changed + rest


@pytest.fixture(scope="module")
def command(command):
    words, draw = ["good", "bad", "book", "the", "story"], random.Random(1)
    texts = [[draw.choice(words) for _ in range(7)] for _ in range(96)]
    rows = (f"{' '.join(text)}\t{text.count('good')}\n" for text in texts)
    (command.folder / "my own").mkdir()
    (command.folder / "less").mkdir()
    files = {"reviews.tsv": "".join(rows), "FILE": "good good good good\n\nbad story\n"}
    files.update({"topics.py": with_classes(), "less/stars.py": LESS})
    for name, text in {**files, **dict.fromkeys(PLACES[:2], STARS)}.items():
        (command.folder / name).write_text(text)
    with open(command.folder / PLACES[1], "a") as recipe:
        recipe.write("import neighbour\n")  # a file beside the recipe, not beside the user
    (command.folder / "my own/neighbour.py").write_text("")
    return command


@pytest.fixture(scope="module")
def printed(command):
    """Return a function: the lines that a run of a recipe printed, by their first words."""

    @functools.lru_cache(maxsize=None)
    def lines(place):
        done = command.done(CLI, "train", place, *FLAGS, "--name", f"run {PLACES.index(place)}")
        return dict(line.partition(": ")[::2] for line in done.err.splitlines())

    lines(PLACES[0])
    return lines


@pytest.mark.parametrize(
    "place", [PLACES[0], *(pytest.param(place, marks=pytest.mark.once) for place in PLACES[1:])]
)
def test_what_a_run_prints_can_be_typed(place, printed, command):
    def typed(start, file="FILE"):
        program, *words = shlex.split(printed(place)[start])
        assert (command.folder / program).resolve() == ROOT / "amp-xla"
        return command.done(CLI, *(file if word == "FILE" else word for word in words)).out

    good, blank, bad = typed("predict with").split("\n")[:3]
    assert not blank and (place in PLACES[2:] or float(good[:4]) > float(bad[:4]) + 0.5)
    assert "96 samples" in typed("score labelled samples with", "reviews.tsv")
    assert "its outputs differ from the run's by at most" in typed("export it with")


def test_a_killed_run_continues_as_its_first_lines_say(printed, command):
    words = [CLI, "train", "stars.py", *FLAGS]
    faults = {"log": str(command.folder / "log"), "faults": {"step": [9, "after"]}}
    killed = command(*words, "--name", "killed", **faults)
    advice = killed.err.partition("after an interruption, the same command with ")[2]
    done = command.done(*words, *shlex.split(advice.partition(" continues\n")[0]))
    assert killed.code == -9 and "resumed from step-" in done.err
    runs = command.folder / "runs" / "stars"
    assert state(runs / "killed") == state(runs / "run 0")


@pytest.mark.once
def test_it_is_forecast_and_what_is_missing_is_named(command):
    words = ("--gpu", "h100", "--steps", "9000000", "--", *FLAGS)
    done = command.done(CLI, "plan", "stars.py", *words)
    assert "h100" in done.out and "written: runs/stars/plan/plan.json" in done.out
    assert "with a GPU, --xla auto (the default) would choose: XLA on (auto: " in done.err
    assert " --xla on (auto: " in done.out and "9,000,000" in done.out
    error = command(CLI, "train", "stars.py", "--layers", "1").error
    assert "give --train and --dev, because the built-in" in error
    for name, why in (("no-name.py", "needs another name"), ("main.py", "has no object `recipe`")):
        (command.folder / name).write_text("def main(argv):\n    raise SystemExit(9)\n")
        assert f"{name} {why}" in command(CLI, "train", "--recipe", name).error


@pytest.mark.once
@pytest.mark.parametrize("part, mistake, problem", MISTAKES)
def test_a_part_of_another_shape_is_named(command, part, mistake, problem):
    recipe = STARS.replace('"', "'").replace("'''", '"""')
    assert part in recipe
    (command.folder / "wrong.py").write_text(recipe.replace(part, mistake))
    words = [*FLAGS, "--epochs", "1", "--checkpoint-every", "0"]
    error = command(CLI, "train", "wrong.py", *words).error
    assert re.search(problem, error.replace("(?", "(None"))  # 1.15 prints (?,)


@pytest.mark.once
@pytest.mark.parametrize("function", LACKS)
def test_what_a_recipe_lacks_is_named(printed, command, function):
    words = LACKS[function].replace("RUN", "runs/stars/latest").split()
    error = command(CLI, *words, "--recipe", "less/stars.py").error
    assert f"recipe stars has no `{function}`; " in error
    if function == "predict":
        error = command(CLI, *words, "--recipe", "tagging").error
        assert error.endswith("was trained by recipe stars, not tagging")
