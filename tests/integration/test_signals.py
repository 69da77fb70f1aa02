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
from typing import Any, Dict, List, Tuple

import pytest

from amp_xla.training import checkpoint
from tests.integration.killing import Run, Server
from tests.running import environment

CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
WORDS = "good fine nice bad poor awful film plot actor music".split()


def corpus(folder: Path) -> List[str]:
    """A recipe's command line that trains in a second or two, once TensorFlow is there."""
    chosen = random.Random(1)
    for name, count in (("train", 192), ("dev", 16)):
        lines = []
        for i in range(count):
            words = [chosen.choice(WORDS[:3] if i % 2 else WORDS[3:6])]
            words += [chosen.choice(WORDS[6:]) for _ in range(6)]
            lines.append(f"{' '.join(words)}\t{'no yes'.split()[i % 2]}\n")
        (folder / f"{name}.tsv").write_text("".join(lines))
    words = "--train train.tsv --dev dev.tsv --epochs 3 --batch-size 8 --max-length 16 --shapes 1"
    words += " --layers 1 --hidden 64 --log-every 4 --checkpoint-every 3 --precision fp32"
    return words.split()


class Recipe:
    """A real ``python -m recipes.classification`` in ``folder``."""

    def __init__(self, folder: Path, words: List[str]) -> None:
        self.folder, self.words = folder, words

    def start(self, name: str) -> Any:
        command = [sys.executable, "-m", "recipes.classification", *self.words, "--name", name]
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
    recipe = Recipe(tmp_path, corpus(tmp_path))
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forked_processes_at_any_time_of_training(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    moments = random.Random(21)
    began = time.monotonic()
    timed = Run(servers[0], tmp_path / "timed")
    assert timed() == 0
    # Building the graph takes longest: every third signal comes then, the others in training.
    seconds = {"second": time.monotonic() - began, "trained": timed.records("trained")[-1][0]}
    ends: List[str] = []
    for number in range(6):
        run = Run(servers[0], tmp_path / str(number))
        for sent in CODES:
            since = "second" if (number + len(ends)) % 3 == 0 else "trained"
            spec: Dict[str, Any] = {since: moments.uniform(0.0, seconds[since]), "signal": sent}
            said = len(run.text())
            code = run(spec)
            code = code if code >= 0 else 128 - code
            found = checkpoint.steps(run.path / "checkpoints")
            assert [checkpoint.problems(path) for path in found] == [[] for _ in found]
            names = [path.name for path in found]
            ends.append(judge("run", code, run.text()[said:], sent, names))
        assert run() == 0, run.text()
        assert run.state() == reference.state()
    assert len(ends) == 18 and "trained" in ends
    print(f"{seconds}; ends: {ends}")
