"""Signals at random moments, from the first line of a program to its last."""

from __future__ import annotations

import concurrent.futures
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, Tuple

import pytest

from amp_xla.training import checkpoint
from tests.integration.test_classification import write_corpus
from tests.running import environment

CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
WORDS = (
    "--train train.tsv --dev dev.tsv --epochs 3 --batch-size 8 --max-length 16 --shapes 1 "
    "--layers 1 --hidden 64 --log-every 4 --checkpoint-every 3 --precision fp32"
).split()


class Recipe:
    """A real ``python -m recipes.classification`` in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_corpus(folder / "train.tsv", 192, 1)
        write_corpus(folder / "dev.tsv", 16, 2)

    def start(self, name: str) -> Any:
        command = [sys.executable, "-m", "recipes.classification", *WORDS, "--name", name]
        return subprocess.Popen(
            [*command, "--resume"], cwd=str(self.folder), env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def checkpoints(self, name: str) -> List[str]:
        """Names of a run's checkpoints, all of them whole."""
        found = checkpoint.steps(self.folder / "runs" / "classification" / name / "checkpoints")
        assert [checkpoint.problems(path) for path in found] == [[] for _ in found]
        return [path.name for path in found]

    def stop(self, name: str, seconds: float, sent: str) -> Tuple[float, int, str]:
        """Sends a signal after ``seconds``; returns (seconds until the end, exit code, output)."""
        process = self.start(name)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(getattr(signal, sent))
            began = time.monotonic()
            out, _ = process.communicate(timeout=120)
            took = time.monotonic() - began
            # Before Python can, the kernel ends a process by a signal: a shell shows the same.
            code = process.returncode
            return took, code if code >= 0 else 128 - code, out.decode()
        return 0.0, process.returncode, out.decode()


def judge(name: str, code: int, text: str, sent: str, checkpoints: List[str]) -> str:
    """What was promised is there; returns what kind of end it was."""
    assert "Traceback" not in text and "error" not in text, text
    if code == 0:  # it was over before
        assert "done: best dev" in text, text
        return "done"
    assert code == CODES[sent], (sent, code, text)
    step = re.search(r"after step (\d+)", text)
    if step:
        assert checkpoints[-1].startswith(f"step-{int(step.group(1)):08d}"), (checkpoints, text)
        return "trained"
    return "complete" if "after the last step" in text else "started"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_real_processes_from_their_first_moment(tmp_path: Path) -> None:
    """Each chain of signals hits one run, which a last process brings to its end."""
    recipe = Recipe(tmp_path)
    began = time.monotonic()
    whole = recipe.start("whole")
    text = whole.communicate(timeout=200)[0].decode()
    duration = time.monotonic() - began
    assert whole.returncode == 0, text
    expected = recipe.checkpoints("whole")[-1]  # of the last step
    moments = random.Random(20)

    def chain(number: int) -> List[str]:
        ends = []
        for sent in CODES:
            # Half of them while Python and TensorFlow start, where hardly anything is ours yet.
            at = moments.uniform(0.0, duration * (0.5 if len(ends) % 2 else 1.0))
            took, code, text = recipe.stop(f"c{number}", at, sent)
            ends.append(judge(f"c{number}", code, text, sent, recipe.checkpoints(f"c{number}")))
            assert took < 20 + duration, (took, text)
        last = recipe.start(f"c{number}")
        text = last.communicate(timeout=200)[0].decode()
        assert last.returncode == 0, text
        # An evaluation that was broken off is made up for, and has a checkpoint of its own.
        assert recipe.checkpoints(f"c{number}")[-1].split(".")[0] == expected
        return ends

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = [end for found in pool.map(chain, range(4)) for end in found]
    assert len(ends) == 12 and "started" in ends
    print(f"{duration:.1f} s undisturbed; ends: {ends}")
