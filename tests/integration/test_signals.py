"""Signals at random moments, from the first line of a program to its last."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

import pytest

from amp_xla.training import checkpoint
from tests.integration.test_classification import write_corpus
from tests.running import environment

CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
WORDS = (
    "-m recipes.classification --train train.tsv --dev dev.tsv --epochs 3 --batch-size 8 "
    "--max-length 16 --shapes 1 --layers 1 --hidden 64 --log-every 4 --checkpoint-every 3 "
    "--precision fp32 --resume --name"
).split()


def start(folder: Path, name: str) -> Any:
    return subprocess.Popen(
        [sys.executable, *WORDS, name], cwd=str(folder), env=environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def checkpoints(folder: Path, name: str) -> List[str]:
    """Names of a run's checkpoints, all of them whole."""
    found = checkpoint.steps(folder / "runs" / "classification" / name / "checkpoints")
    assert [checkpoint.problems(path) for path in found] == [[] for _ in found]
    return [path.name for path in found]


def stop(folder: Path, name: str, seconds: float, sent: str) -> str:
    """Send a signal after ``seconds``; return what kind of end it was, as promised."""
    process = start(folder, name)
    try:
        text = process.communicate(timeout=seconds)[0].decode()
    except subprocess.TimeoutExpired:
        process.send_signal(getattr(signal, sent))
        text = process.communicate(timeout=120)[0].decode()
    # Before Python can, the kernel ends a process by a signal: a shell shows the same.
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    assert "Traceback" not in text and "error" not in text, text
    if code == 0:  # it was over before
        assert "done: best dev" in text, text
        return "done"
    assert code == CODES[sent], (sent, code, text)
    step = re.search(r"after step (\d+)", text)
    if step:
        assert checkpoints(folder, name)[-1].startswith(f"step-{int(step.group(1)):08d}"), text
        return "trained"
    return "complete" if "after the last step" in text else "started"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_processes_from_their_first_moment(tmp_path: Path) -> None:
    """Each chain of signals hits one run, which a last process brings to its end."""
    write_corpus(tmp_path / "train.tsv", 192, 1)
    write_corpus(tmp_path / "dev.tsv", 16, 2)
    began = time.monotonic()
    whole = start(tmp_path, "whole")
    text = whole.communicate(timeout=200)[0].decode()
    duration = time.monotonic() - began
    assert whole.returncode == 0, text
    expected = checkpoints(tmp_path, "whole")[-1]  # of the last step
    moments, ends = random.Random(20), []
    for name in ("one", "two", "three", "four"):
        for number, sent in enumerate(CODES):
            # Half of them while Python and TensorFlow start, where hardly anything is ours yet.
            at = moments.uniform(0.0, duration * (0.5 if number % 2 else 1.0))
            ends.append(stop(tmp_path, name, at, sent))
        last = start(tmp_path, name)
        text = last.communicate(timeout=200)[0].decode()
        assert last.returncode == 0, text
        # An evaluation that was broken off is made up for, and has a checkpoint of its own.
        assert checkpoints(tmp_path, name)[-1].split(".")[0] == expected
    assert "started" in ends, ends
