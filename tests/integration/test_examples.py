"""The examples, as users run them: they learn, and continue after SIGKILL to the same bits."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List

import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.running import ROOT, environment, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Script -> its last result, and the least that it reaches from random weights.
SCRIPTS = {
    "ner_crf": (r"epoch 3/3 .* dev f1 ([\d.]+)", 0.9),
    "similarity": (r"epoch 5/5 .* dev accuracy ([\d.]+)", 0.8),
    "relations_gplinker": (r"epoch 10/10 .* dev f1 ([\d.]+)", 0.8),
    "masked_language_model": (r"epoch 8/8 .* dev accuracy ([\d.]+)", 0.4),
}
KILLED = "masked_language_model"


def start(script: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a script in a folder, as its README line does; all output goes to ``out.txt``."""
    folder.mkdir(exist_ok=True)
    with open(folder / "out.txt", "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "examples" / f"{script}.py")],
            cwd=str(folder), env=environment(), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip


def finish(script: str, folder: Path) -> str:
    """Run a script to its end; return all output of the folder's processes."""
    code, text = start(script, folder).wait(), (folder / "out.txt").read_text("utf-8")
    assert code == 0, text
    return text


def kill(script: str, folder: Path, due: Callable[[str], bool]) -> bool:
    """Run a script and kill it when its output is as wished; return False if it ended before."""
    process, before = start(script, folder), len((folder / "out.txt").read_text("utf-8"))
    while process.poll() is None:
        if due((folder / "out.txt").read_text("utf-8", errors="ignore")[before:]):
            process.kill()
        time.sleep(0.05)
    return process.wait() == -9


def tensors(script: str, folder: Path) -> str:
    """Return the SHA-256 of the last checkpoint: weights, optimizer, loss scale."""
    newest = checkpoint.steps(folder / "runs" / script / "checkpoints")[-1]
    digest: str = checkpoint.read_manifest(newest)["tensors.safetensors"]["sha256"]
    return digest


def results(text: str) -> List[str]:
    """Return what the processes printed about each epoch, without seconds."""
    return re.findall(r"^epoch \d+[^[\n]*", text, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_learns_and_continues_after_sigkill(script: str, tmp_path: Path) -> None:
    whole = finish(script, tmp_path / "whole")
    result, least = SCRIPTS[script]
    score = re.search(result, whole)
    assert score and float(score.group(1)) >= least, whole
    assert "first step ran: " in whole and "resuming is not exact" not in whole
    if script == KILLED:
        killed = tmp_path / "killed"
        assert kill(script, killed, lambda text: "Epoch 3" in text)
        resumed = finish(script, killed)
        assert "resumed from" in resumed
        assert results(whole)[-1] == results(resumed)[-1]
        assert tensors(script, tmp_path / "whole") == tensors(script, killed)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("script", ["ner_crf", "similarity"])
def test_ten_kills_at_random_moments(script: str, tmp_path: Path) -> None:
    draw, kills, runs, began = random.Random(1), 0, 0, time.monotonic()
    whole = finish(script, tmp_path / "whole")
    seconds, expected = time.monotonic() - began, tensors(script, tmp_path / "whole")
    trained = re.search(r"samples in (\d+) s of training", whole)
    assert trained is not None
    while kills < 10:
        runs += 1
        folder, ended = tmp_path / str(runs), False
        while kills < 10 and not ended:
            # One moment of three is anywhere in a process, the others are while it trains.
            training = kills % 3 > 0
            after = "first step ran" if training else ""
            longest = 0.9 * int(trained[1]) if training else seconds
            delay, begun = draw.random() * longest, [0.0]

            def due(
                text: str, after: str = after, delay: float = delay, begun: List[float] = begun
            ) -> bool:
                begun[0] = begun[0] or (after in text) * time.monotonic()
                return bool(begun[0]) and time.monotonic() > begun[0] + delay

            ended = not kill(script, folder, due)
            kills += not ended
        if not ended:
            finish(script, folder)
        assert tensors(script, folder) == expected, (folder / "out.txt").read_text("utf-8")
    print(f"{script}: {kills} kills of {runs} runs, the same bits")


@pytest.mark.skipif(backend.kind() != "tf2", reason="this example is TensorFlow 2's")
def test_the_keras_example_learns() -> None:
    policy = "mixed_bfloat16"
    small = ["--batch", "64", "--width", "64", "--samples", "2048", "--epochs", "6"]
    words = [str(ROOT / "examples" / "keras_fit.py"), "--policy", policy, *small]
    result = run_python(*words, cwd=ROOT)
    assert result.code == 0, result.err
    accuracy = re.findall(r"test accuracy ([\d.]+)", result.out)
    assert len(accuracy) == 1 and float(accuracy[0]) > 0.9, result.out
    assert f"{policy}: compute" in result.out
