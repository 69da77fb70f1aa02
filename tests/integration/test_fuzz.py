"""Hostile folders, made at random.

A file of a run, of prepared text or of weights is damaged, has any values, or is a link or a pipe.
Each command ends within a minute, an error is one line; it needs less than 2 GB more than it
starts with, and neither reads nor writes outside. The first few are always tried;
`make test-all ARGS='-m long'` tries ``FUZZ_SEEDS`` of them, and each seed makes the same one again.
"""

import os
import random
import shutil

import pytest

from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from tests.models.test_hugging_face import FOLDERS
from tests.support import google_folder, grammar, hostile, run_folders
from tests.support.commands import CLI, Commands, bytes_of
from tests.tasks.classification.test_recipe import DATA, WORDS, write_corpus
from tests.tasks.pretraining.test_recipe import SMALLER

ALL = int(os.environ.get("FUZZ_SEEDS", "320"))
MINE, TRAIN = "runs/classification/mine", " ".join(["train classification", *DATA, "--shapes 1"])
START = f"{TRAIN} --epochs 1 --name new --max-length 20"
PRETRAIN = "--data data --heldout 4 --steps 2 --micro-batch 4 --global-batch 4"
COMMANDS = {
    MINE: [
        f"predict {MINE} new.txt", f"verify {MINE}", f"report {MINE}", "runs runs",
        f"export {MINE} --format hf --to out", f"evaluate {MINE} --file dev.tsv",
        f"{TRAIN} --epochs 3 --name mine --resume",
    ],
    "data": [
        f"train pretraining {PRETRAIN}", f"inspect pretraining -- {PRETRAIN}",
        "prepare corpus.txt data --length 32 --vocab-size 192 --heldout 0.05 --workers 1",
    ],
    **{
        name: [f"convert {name} out --format google", f"{START} --bert {name}"]
        for name in ("bert", "bert_old", "bert_zip", "google")
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def foreign(server, tmp_path_factory):
    """Return a folder with a folder of each kind."""
    folder = tmp_path_factory.mktemp("foreign")
    for name, count in (("train.tsv", 64), ("dev.tsv", 16)):
        write_corpus(folder / name, count, count)
    (folder / "new.txt").write_text("snow and wind\nsalt the soup\n")
    command = Commands(server, folder)
    command.done(CLI, *TRAIN.split(), "--epochs", "2", "--name", "mine")
    run_folders.scored(folder / MINE, "sport")
    (folder / MINE / "report.html").unlink()
    (folder / MINE / "nonfinite-00000190").mkdir()
    (folder / MINE / "nonfinite-00000190" / "report.txt").write_text("MatMul\n")
    grammar.prepared(folder)
    tokens = [*SPECIAL_TOKENS, "the", "a", "with", *WORDS["weather"], *WORDS["kitchen"]]
    for name in ("bert", "bert_old", "bert_zip"):
        shutil.copytree(str(FOLDERS / name), str(folder / name))
        (folder / name / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    google_folder.write(folder / "google", vocabulary=tokens)
    return folder


def harm(server, foreign, folder, seed):
    """Spoil a folder; return what commands that read it did wrong, empty = nothing."""
    chance = random.Random(seed)
    shutil.copytree(str(foreign), str(folder), symlinks=True)
    name = chance.choice([MINE, MINE, *COMMANDS])
    words = chance.choice(COMMANDS[name])
    (folder / "outside").mkdir()
    count = chance.choice((1, 1, 3))
    done = [hostile.spoil(folder / name, folder / "outside", chance) for _ in range(count)]
    before, problems = bytes_of(folder / "outside"), []
    # Reports are fast, and show more of a run's files than others.
    for line in dict.fromkeys([words, *COMMANDS[MINE][2:4]] if name == MINE else [words]):
        result = Commands(server, folder)(CLI, *line.split(), code=hostile.LIMITS + SMALLER)
        page = folder / MINE / "report.html"
        own = page.is_file() and not page.is_symlink() and page.stat().st_size < 1 << 30
        shown = result.out + result.err + (page.read_text("utf-8", "replace") if own else "")
        damaged = line.startswith("verify") and "DAMAGED" in result.out and result.code == 1
        wrong = {
            f"ended with {result.code}": not (result.code in (0, 2) or damaged),
            "traceback": "Traceback" in result.err,
            "no error line": result.code == 2
            and not result.err.splitlines()[-1].startswith("error: "),
            "memory": "not enough memory" in result.err,
            "long line": max(map(len, result.err.split("\n"))) > 3000,
            "control characters": "\x1b" in shown or "\u202e" in shown,
            "outside": hostile.SECRET in shown or bytes_of(folder / "outside") != before,
        }
        said = f"{line}: {list(filter(wrong.get, wrong))}\n{result.err[-3000:]}"
        problems += [said] * any(wrong.values())
    shutil.rmtree(str(folder))
    return problems and f"{seed}: {name}: {done}: {problems}"


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, ALL), marks=pytest.mark.long)], ids=str
)
def test_a_hostile_folder_does_no_harm(server, foreign, tmp_path, seeds):
    bad = [harm(server, foreign, tmp_path / str(seed), seed) for seed in seeds]
    assert not any(bad), "\n".join(filter(None, bad))
