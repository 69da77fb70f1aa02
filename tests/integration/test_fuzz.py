"""One file of a finished run damaged at random: the same answers as before, or an error naming it.

The first few are always tried; `make test-all ARGS='-m long'` tries ``FUZZ_SEEDS`` of them, a full
search is 200, and each seed makes the same one again. Predict, verify and resume are processes
forked from one that has TensorFlow. The job is a small one of the tests', with vocabulary and
labels like a recipe's.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from amp_xla.training import checkpoint
from tests.integration.commands import PREDICT, VERIFY, Commands
from tests.integration.damage import damage
from tests.integration.killing import Server

FEW, ALL = 12, int(os.environ.get("FUZZ_SEEDS", "32"))
TINY = "tests.integration.tiny"
CONFIG = dict(epochs=2, samples=9, hidden=8, accumulate=1, overflow_at=[])
TEXTS = ["1 2 3 4", "40 39 38 37", "7 33 21 20", "11 12 30 29"]


def train(command: Commands, seed: int, **run: Any) -> Any:
    options = dict(name="run", checkpoint_every=2, keep=2)
    config = {**CONFIG, "seed": seed}
    return command.job({"module": TINY, "config": config, "run": {**options, **run}})


def predict(command: Commands) -> Any:
    return command(PREDICT, "--run", "runs/tiny/run", "--recipe", TINY, "--file", "texts.txt")


@pytest.fixture(scope="module")
def finished(server: Server, tmp_path_factory: Any) -> List[Path]:
    """Two runs that differ in everything but their files' names."""
    made = []
    for seed in (3, 4):
        folder = tmp_path_factory.mktemp(f"finished-{seed}")
        (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
        command = Commands(server, folder, folder)
        result = train(command, seed)
        assert result.code == 0, result.err
        made.append(folder)
    return made


def newest(folder: Path) -> str:
    path = checkpoint.steps(folder / "runs" / "tiny" / "run" / "checkpoints")[-1]
    return checkpoint.sha256(path / checkpoint.TENSORS)


def judged(result: Any, path: Path, expected: str) -> str:
    """What is wrong with how a command took the damage to ``path``; empty = nothing."""
    if "Traceback" in result.err or result.code not in (0, 1, 2):
        return f"ended with {result.code}"
    if result.code == 0:
        return "" if result.out == expected else "another answer"
    if result.code == 2 and not result.err.splitlines()[-1].startswith("error: "):
        return "no error line"
    return "" if path.name in result.out + result.err else f"{path.name} is not named"


def one(server: Server, finished: List[Path], seed: int, place: Path) -> Tuple[str, List[str]]:
    """Tries one damage; returns what it was and what went wrong."""
    chance = random.Random(seed)
    first, second = finished
    folder, scratch = place / "run", place / "scratch"
    shutil.copytree(str(first), str(folder), symlinks=True)
    scratch.mkdir()
    run = folder / "runs" / "tiny" / "run"
    files = sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink())
    path = chance.choice(files)
    command = Commands(server, folder, scratch)
    answers = (first / "answers.txt").read_text()
    verified = (first / "verified.txt").read_text()
    kind = damage(path, second / path.relative_to(folder), chance)
    what = f"{seed}: {kind} {path.relative_to(run)}"
    wrong = []

    def check(name: str, result: Any, expected: str) -> None:
        problem = judged(result, path, expected)
        if problem:
            wrong.append(f"{name}: {problem}\n{result.out}{result.err}")

    check("predict", predict(command), answers)
    check("verify", command(VERIFY, "--run", "runs/tiny/run"), verified)
    resumed = train(command, 3, resume=True)
    check("resume", resumed, "")
    if resumed.code == 0:
        if newest(folder) != newest(first):
            wrong.append("resume: other weights\n" + resumed.err)
        check("predict after it", predict(command), answers)
    return f"{what}: resume {resumed.code}", wrong


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, ALL), marks=pytest.mark.long)], ids=str
)
def test_a_damaged_file_never_changes_an_answer(
    server: Server, finished: List[Path], tmp_path: Path, seeds: Sequence[int]
) -> None:
    command = Commands(server, finished[0], tmp_path)
    for name, result in (
        ("answers.txt", predict(command)),
        ("verified.txt", command(VERIFY, "--run", "runs/tiny/run")),
    ):
        assert result.code == 0, result.err
        (finished[0] / name).write_text(result.out)
    assert len(set(predict(command).out.splitlines())) == len(TEXTS)
    bad: Dict[str, List[str]] = {}
    for seed in seeds:
        place = tmp_path / str(seed)
        place.mkdir()
        what, wrong = one(server, finished, seed, place)
        print(what, flush=True)
        if wrong:
            bad[what] = wrong
        shutil.rmtree(str(place))
    assert not bad, json.dumps(bad, indent=1).replace("\\n", "\n")
