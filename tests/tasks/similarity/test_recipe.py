"""The similarity recipe as users run it: small pairs made here."""

import json
import random

import numpy as np
import pytest

from tests.support.commands import PREDICT
from tests.support.killing import metrics, state
from tests.tasks.classification.test_recipe import WORDS

RECIPE = "recipes.similarity"
DATA = (
    "--train train.tsv --dev dev.tsv --layers 1 --hidden 64 --max-length 24 --shapes 2 "
    "--learning-rate 2e-3 --vocab-size 200 --log-every 5 --epochs 3 --checkpoint-every 4 "
    "--keep 99"
).split()


def pairs(count, seed, second=False):
    """Two texts, and whether they have one subject, or whether the second is about the weather."""
    draw = random.Random(seed)

    def text(subject):
        words = WORDS[subject] + ["the", "a", "with"]
        return " ".join(draw.choice(words) for _ in range(draw.randint(3, 9)))

    subjects = [[draw.choice(sorted(WORDS)) for _ in range(2)] for _ in range(count)]
    return [
        (text(one), text(two), int(two == ("weather" if second else one))) for one, two in subjects
    ]


def write(path, rows, header=""):
    lines = [header] * bool(header) + ["\t".join(map(str, row)) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def command(command):
    folder = command.folder
    write(folder / "train.tsv", pairs(240, 1))
    write(folder / "dev.tsv", pairs(60, 2))
    write(folder / "texts.txt", [row[:1] for row in pairs(80, 4)])
    for method in ("cosent", "cross-encoder"):
        rows = [(a, b, label * 5.0) for a, b, label in pairs(240, 3, method == "cross-encoder")]
        write(folder / f"{method}.tsv", rows, "sentence1\tsentence2\tscore")
    write(folder / "new.tsv", [("snow and rain", "wind with storm"), ("frost",), ("soup", "frost")])
    write(folder / "labelled.tsv", [("snow rain", "wind storm", "1")])
    write(folder / "good.tsv", [GOOD[0], (" ",), GOOD[1]])
    write(folder / "lines.txt", [("salt the soup",), ("",), ("storm and wind",)])
    return command


GOOD = [("snow with rain", "wind a storm"), ("the frost wind", "soup with bread")]
SCORES = ("--epochs", "5", "--train")
# Name of a run -> its flags
RUNS = {
    "cosent": ("cosent",),
    "simcse": ("simcse",),
    "unsupervised-simcse": (
        "unsupervised-simcse", "--train", "texts.txt", "--fgm", "1", "--ema", "0.9",
        "--layer-decay", "0.9",
    ),
    "cross-encoder": ("cross-encoder", *SCORES, "cross-encoder.tsv", "--dev", "cross-encoder.tsv"),
    "scores": ("cosent", *SCORES, "cosent.tsv", "--dev", "cosent.tsv"),
}  # fmt: skip
MARKS = {"cosent": (), "scores": pytest.mark.long}


def trained(command, name):
    run = command.folder / "runs" / "similarity" / name
    if not run.exists():
        command.done(RECIPE, *DATA, "--name", name, "--method", *RUNS[name])
    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.once)) for name in RUNS]
)
def test_it_learns_and_answers(command, name):
    run = trained(command, name)
    last = [line for line in metrics(run) if "dev_spearman" in line][-1]
    learns = name != "unsupervised-simcse"  # which needs more than a few steps
    assert not learns or last["dev_spearman"] > 0.8
    said = command(PREDICT, "--run", run, "--file", "good.tsv", "--json").out
    high, blank, low = map(json.loads, said.splitlines())
    assert [high["text"], low["text"]] == ["\t".join(pair) for pair in GOOD]
    assert blank.get("score") is None and (not learns or low["score"] < high["score"] <= 5)
    if "--epochs" in RUNS[name]:  # labels that are numbers
        assert "dev_accuracy" not in last and "label" not in high
        return
    assert not learns or (last["dev_accuracy"] > 0.9 and high["label"] > low["label"])
    words = ("--file", "lines.txt", "--query", "rain with storm")
    ranked = command(PREDICT, "--run", run, *words).out.splitlines()
    texts = [row.split("\t")[-1] for row in ranked]
    assert sorted(texts) == ["salt the soup", "storm and wind"]
    assert texts[0] == "storm and wind" or not learns


@pytest.mark.once
def test_a_file_of_pairs_may_have_labels_and_a_resume_is_exact(command):
    run = trained(command, "cosent")
    done = command(PREDICT, "--run", run, "--file", "labelled.tsv")
    assert done.out.startswith("1\t") and done.out.endswith("\tsnow rain\twind storm\n")
    assert "columns: text = 0, pair = 1 (no header); 2 unused" in done.err
    write(command.folder / "alone.txt", [("snow rain",), ("wind storm",)])
    command.done(PREDICT, "--run", run, "--file", "alone.txt", "--vectors", "two.npy")
    a, b = np.load(str(command.folder / "two.npy"))  # a row per text, not per pair
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert float(done.out.split("\t")[1]) == pytest.approx(cosine, abs=2e-4)
    said = command(PREDICT, "--run", run, "--file", "new.tsv").error
    assert "new.tsv, line 2: needed: two texts with a tab between them" in said
    run = trained(command, "cosent")
    assert state(command.resumed(RECIPE, run, 21, *DATA, "--method", "cosent")) == state(run)


BAD = [
    ("cosent", "a\tb\t1\nc\td\tsame\n", "bad.tsv:2: label is 'same'; a number is needed"),
    ("cosent", "a\tb\t1\nc\td\t1\n", "all 2 samples have the same label: 1"),
    ("simcse", "a\tb\t0\nc\td\t0\n", "--method simcse trains on similar pairs"),
    ("unsupervised-simcse", "a text\nwith\ttab\n", "bad.tsv:2: 2 columns, not 1"),
]  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("method, content, message", BAD)
def test_bad_files_are_refused(command, method, content, message):
    (command.folder / "bad.tsv").write_text(content)
    assert message in command(RECIPE, *DATA, "--method", method, "--train", "bad.tsv").error
