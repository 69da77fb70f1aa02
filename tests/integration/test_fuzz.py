"""Damaged and hostile folders, made at random.

Damage: one file of a finished run changes. Commands give the same answers, or an error that names
the file. Hostile: a file of a run, of prepared text or of weights has any values, or is a link or a
pipe. Each command ends within a minute, an error is one line; it needs less than 2 GB more than it
starts with, and neither reads nor writes outside.

The first few are always tried; `make test-all ARGS='-m long'` tries ``FUZZ_SEEDS`` of them, a full
search is 200, and each seed makes the same one again. Predict, verify and resume are processes
forked from one that has TensorFlow. The job is a small one of the tests', with vocabulary and
labels like a recipe's.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import List

import pytest

from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from amp_xla.process import durable
from amp_xla.training import checkpoint
from tests.models.test_hugging_face import FOLDERS
from tests.support import google_folder, grammar, hostile, run_folders, tiny
from tests.support.commands import CLI, PREDICT, VERIFY, Commands, bytes_of
from tests.tasks.classification.test_recipe import DATA, WORDS, write_corpus
from tests.tasks.pretraining.test_recipe import SMALLER

FEW, ALL = 4, int(os.environ.get("FUZZ_SEEDS", "32"))
KINDS = ("cut", "flip", "delete", "swap", "folder", "link")
TINY, FILE = tiny.__name__, str(tiny.__file__)
RUN = Path("runs/tiny/run")
CONFIG = dict(epochs=2, samples=9, hidden=8, accumulate=1, overflow_at=[])


def damage(path, other, chance):
    """Damage one file, as disks, people and copying do it; return how."""
    kind = chance.choice(KINDS)
    data = path.read_bytes()
    if kind == "swap" and not other.is_file():
        kind = "delete"
    if kind == "cut":
        path.write_bytes(data[: chance.randrange(max(len(data), 1))])
    elif kind == "flip" and data:
        at = chance.randrange(len(data))
        flipped = bytes([data[at] ^ (1 << chance.randrange(8))])
        path.write_bytes(data[:at] + flipped + data[at + 1 :])
    elif kind == "swap":
        shutil.copyfile(str(other), str(path))
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(chance.choice([str(other), "/nowhere", path.name, "/etc/hostname"]))
    return kind


def train(command, seed, **run):
    options = dict(name="run", checkpoint_every=2, keep=2)
    config = {**CONFIG, "seed": seed}
    return command.job({"module": TINY, "config": config, "run": {**options, **run}})


def predict(command):
    return command(PREDICT, "--run", RUN, "--recipe", FILE, "--file", "texts.txt")


@pytest.fixture(scope="module")
def finished(server, tmp_path_factory):
    """Two runs that differ in everything but their files' names."""
    made = []
    for seed in (3, 4):
        folder = tmp_path_factory.mktemp(f"finished-{seed}")
        (folder / "texts.txt").write_text("1 2 3 4\n40 39 38 37\n7 33 21 20\n11 12 30 29\n")
        made.append(Commands(server, folder))
        result = train(made[-1], seed)
        assert result.code == 0, result.err
    return made


def newest(command):
    path = checkpoint.steps(command.folder / RUN / "checkpoints")[-1]
    return durable.sha256(path / checkpoint.TENSORS)


def judged(result, path, expected):
    """What is wrong with how a command took the damage to ``path``; empty = nothing."""
    if "Traceback" in result.err or result.code not in (0, 1, 2):
        return f"ended with {result.code}"
    if result.code == 0:
        return "" if result.out == expected else "another answer"
    if result.code == 2 and not result.err.splitlines()[-1].startswith("error: "):
        return "no error line"
    return "" if path.name in result.out + result.err else f"{path.name} is not named"


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, ALL), marks=pytest.mark.long)], ids=str
)
def test_a_damaged_file_never_changes_an_answer(server, finished, tmp_path, seeds):
    first, second = finished
    answers, verified = predict(first), first(VERIFY, "--run", RUN)
    assert (answers.code, verified.code) == (0, 0), answers.err + verified.err
    assert len(set(answers.out.splitlines())) == 4
    bad: List[str] = []
    for seed in seeds:
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(str(first.folder), str(folder), symlinks=True)
        files = sorted(p for p in (folder / RUN).rglob("*") if p.is_file() and not p.is_symlink())
        path = chance.choice(files)
        command = Commands(server, folder)
        kind = damage(path, second.folder / path.relative_to(folder), chance)
        what = f"{seed}: {kind} {path.relative_to(folder)}"

        def check(name, result, expected, what=what, at=path):
            problem = judged(result, at, expected)
            if problem:
                bad.append(f"{what}: {name}: {problem}\n{result.out}{result.err}")
            return result.code

        check("predict", predict(command), answers.out)
        check("verify", command(VERIFY, "--run", RUN), verified.out)
        if check("resume", train(command, 3, resume=True), "") == 0:
            if newest(command) != newest(first):
                bad.append(f"{what}: resume: other weights")
            check("predict after it", predict(command), answers.out)
        shutil.rmtree(str(folder))
    assert not bad, "\n".join(bad)


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
    "seeds", [range(12), pytest.param(range(12, 10 * ALL), marks=pytest.mark.long)], ids=str
)
def test_a_hostile_folder_does_no_harm(server, foreign, tmp_path, seeds):
    bad = [harm(server, foreign, tmp_path / str(seed), seed) for seed in seeds]
    assert not any(bad), "\n".join(filter(None, bad))
