"""The similarity recipe as users run it: small pairs made here."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, List, Tuple

import pytest

from amp_xla.data.labelled import BatchOptions, Preparation
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.errors import DataError
from amp_xla.tasks.similarity.data import PairFiles, read
from tests.support.commands import PREDICT, Commands
from tests.support.killing import metrics, state
from tests.tasks.classification.test_recipe import WORDS

RECIPE = "recipes.similarity"
METHODS = ("cross-encoder", "simcse", "unsupervised-simcse")
DATA = (
    "--train", "train.tsv", "--dev", "dev.tsv", "--layers", "1", "--hidden", "64", "--max-length",
    "24", "--shapes", "2", "--learning-rate", "2e-3", "--vocab-size", "200", "--log-every", "5",
    "--epochs", "3", "--checkpoint-every", "4", "--keep", "99",
)  # fmt: skip


def pairs(count: int, seed: int, second: bool = False) -> List[Tuple[str, str, int]]:
    """Two texts, and whether they have one subject, or whether the second is about the weather."""
    draw = random.Random(seed)

    def text(subject: str) -> str:
        words = WORDS[subject] + ["the", "a", "with"]
        return " ".join(draw.choice(words) for _ in range(draw.randint(3, 9)))

    subjects = [[draw.choice(sorted(WORDS)) for _ in range(2)] for _ in range(count)]
    return [
        (text(one), text(two), int(two == ("weather" if second else one))) for one, two in subjects
    ]


def write(path: Path, rows: Any, header: str = "") -> None:
    lines = [header] * bool(header) + ["\t".join(map(str, row)) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def command(command: Commands) -> Commands:
    folder = command.folder
    write(folder / "train.tsv", pairs(240, 1))
    write(folder / "dev.tsv", pairs(60, 2))
    write(folder / "texts.txt", [row[:1] for row in pairs(80, 4)])
    for method in ("cosent", "cross-encoder"):
        rows = [(a, b, label * 5.0) for a, b, label in pairs(240, 3, method == "cross-encoder")]
        write(folder / f"{method}.tsv", rows, "sentence1\tsentence2\tscore")
    write(folder / "new.tsv", [("snow and rain", "wind with storm"), ("frost",), ("soup", "frost")])
    write(folder / "lines.txt", [("salt the soup",), ("",), ("storm and wind",)])
    return command


def trained(command: Commands, method: str, name: str, *words: str) -> Path:
    command.done(RECIPE, *DATA, "--method", method, "--name", name, *words)
    return command.folder / "runs" / "similarity" / name


@pytest.fixture(scope="module")
def cosent(command: Commands) -> Path:
    return trained(command, "cosent", "cosent")


# The others need more than a few steps.
LEARN = ("cosent", "simcse")
TRICKS = ("--fgm", "1", "--ema", "0.9", "--layer-decay", "0.9")


@pytest.mark.parametrize(
    "method", ["cosent", *(pytest.param(x, marks=pytest.mark.once) for x in METHODS)]
)
def test_it_learns_and_answers(command: Commands, cosent: Path, method: str) -> None:
    words = ("--train", "texts.txt", *TRICKS) if method == "unsupervised-simcse" else ()
    run = cosent if method == "cosent" else trained(command, method, method, *words)
    last = [line for line in metrics(run) if "dev_spearman" in line][-1]
    assert method not in LEARN or (last["dev_spearman"] > 0.8 and last["dev_accuracy"] > 0.9)
    if method == "cosent":
        said = command(PREDICT, "--run", run, "--file", "new.tsv", "--json").error
        assert "new.tsv, line 2: needed: two texts with a tab between them" in said
        write(command.folder / "labelled.tsv", [("snow rain", "wind storm", "1")])
        done = command(PREDICT, "--run", run, "--file", "labelled.tsv")
        assert done.out.endswith("\tsnow rain\twind storm\n")
        assert "columns: text = 0, pair = 1 (no header); 2 unused" in done.err
    good = [("snow with rain", "wind a storm"), ("soup with bread", "the frost wind")]
    write(command.folder / "good.tsv", [good[0], (" ",), good[1]])
    answers = command(PREDICT, "--run", run, "--file", "good.tsv").out.splitlines()
    rows = [answer.split("\t") for answer in answers]
    assert [row[2:] for row in rows] == [list(good[0]), [], list(good[1])]
    assert method not in LEARN or [row[0] for row in rows] == ["1", "", "0"]
    query = ("--query", "rain with storm")
    ranked = command(PREDICT, "--run", run, "--file", "lines.txt", *query).out.splitlines()
    texts = [row.split("\t")[-1] for row in ranked]
    assert sorted(texts) == ["salt the soup", "storm and wind"]
    assert texts[0] == "storm and wind" or method not in LEARN


@pytest.mark.once
def test_resumed_it_ends_with_the_same_bits(command: Commands, cosent: Path) -> None:
    again = command.resumed(RECIPE, cosent, 21, *DATA, "--method", "cosent")
    assert state(again) == state(cosent)


@pytest.mark.once
@pytest.mark.parametrize(
    "method", ["cross-encoder", pytest.param("cosent", marks=pytest.mark.long)]
)
def test_scores_are_learned_as_numbers(command: Commands, method: str) -> None:
    file = f"{method}.tsv"
    flags = ("--train", file, "--dev", file, "--epochs", "5")
    run = trained(command, method, f"{method}-scores", *flags)
    last = [line for line in metrics(run) if "dev_spearman" in line][-1]
    assert last["dev_spearman"] > 0.8 and "dev_accuracy" not in last
    write(command.folder / "good.tsv", [("snow rain", "wind storm"), ("frost", "soup")])
    said = command(PREDICT, "--run", run, "--file", "good.tsv", "--json").out
    high, low = (json.loads(line)["score"] for line in said.splitlines())
    assert low < high <= (5 if method == "cross-encoder" else 1)


BAD = [
    ("cosent", "a\tb\t1\nc\td\tsame\n", "bad.tsv:2: label is 'same'; a number is needed"),
    ("cosent", "a\t1\nb\t0\n", "bad.tsv:1: 2 columns between tabs, and no known header. Needed: "
     "text<TAB>second text<TAB>label; or"),
    ("cosent", "a\tb\t1\nc\td\t1\n", "all 2 pairs have the same label: 1"),
    ("simcse", "a\nb\n", "bad.tsv:1: 1 column between tabs, and no known header. Needed: text<TAB>"
     "second text, or"),
    ("simcse", "a\tb\t0\nc\td\t0\n", "--method simcse trains on similar pairs"),
    ("unsupervised-simcse", "a text\nwith\ttab\n", "bad.tsv:2: 2 columns, not 1"),
]  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("method, content, message", BAD)
def test_bad_files_are_refused(tmp_path: Path, method: Any, content: str, message: str) -> None:
    (tmp_path / "bad.tsv").write_text(content)
    (tmp_path / "dev.tsv").write_text("a\tb\t1\nc\td\t0\n")
    files = PairFiles(train=str(tmp_path / "bad.tsv"), dev=str(tmp_path / "dev.tsv"))
    how = Preparation(VocabularyOptions(), BatchOptions(), None, 0.0, 1)
    with pytest.raises(DataError, match=re.escape(message)):
        read(method, files, how)
