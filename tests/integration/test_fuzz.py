"""One file of a finished run damaged at random: the same answers as before, or an error naming it.

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

from amp_xla.process import durable
from amp_xla.training import checkpoint
from tests.support import tiny
from tests.support.commands import PREDICT, VERIFY, Commands

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
