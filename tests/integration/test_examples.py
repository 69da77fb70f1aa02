"""The examples, as users run them: they learn, and continue after SIGKILL to the same bits."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import List

import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.integration.killing import Server
from tests.running import ROOT, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Script -> its last result, and the least that it reaches from random weights.
SCRIPTS = {
    "ner_crf": (r"epoch 3/3 .* dev f1 ([\d.]+)", 0.9),
    "similarity": (r"epoch 5/5 .* dev accuracy ([\d.]+)", 0.8),
    "relations_gplinker": (r"epoch 10/10 .* dev f1 ([\d.]+)", 0.8),
    "masked_language_model": (r"epoch 8/8 .* dev accuracy ([\d.]+)", 0.4),
}
KILLED = "ner_crf"
BOTH = ("ner_crf", "similarity")  # on both TensorFlows: a recurrence, and two towers


def start(server: Server, script: str, folder: Path) -> int:
    """Start a script in a folder; all output goes to ``out.txt``."""
    folder.mkdir(exist_ok=True)
    path, out = ROOT / "examples" / f"{script}.py", folder / "out.txt"
    out.touch()
    return server.start({"cwd": str(folder), "script": str(path), "out": str(out)})


def finish(server: Server, script: str, folder: Path) -> str:
    """Run a script to its end; return all output of the folder's processes."""
    start(server, script, folder)
    code, text = server.wait(), (folder / "out.txt").read_text("utf-8")
    assert code == 0, text
    return text


def kill(server: Server, script: str, folder: Path, after: str) -> None:
    """Run a script and kill it once its output has a text."""
    pid = start(server, script, folder)
    while after not in (folder / "out.txt").read_text("utf-8", errors="ignore"):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert server.wait() == -9


def tensors(script: str, folder: Path) -> str:
    """Return the SHA-256 of the last checkpoint: weights, optimizer, loss scale."""
    newest = checkpoint.steps(folder / "runs" / script / "checkpoints")[-1]
    digest: str = checkpoint.read_manifest(newest)["tensors.safetensors"]["sha256"]
    return digest


def results(text: str) -> List[str]:
    """Return what the processes printed about each epoch, without seconds."""
    return re.findall(r"^epoch \d+[^[\n]*", text, re.MULTILINE)


@pytest.mark.parametrize(
    "script", [pytest.param(x, marks=[pytest.mark.once] * (x not in BOTH)) for x in SCRIPTS]
)
def test_it_learns_and_continues_after_sigkill(server: Server, script: str, tmp_path: Path) -> None:
    whole = finish(server, script, tmp_path / "whole")
    result, least = SCRIPTS[script]
    score = re.search(result, whole)
    assert score and float(score.group(1)) >= least, whole
    assert "first step ran: " in whole and "resuming is not exact" not in whole
    if script == KILLED:
        killed = tmp_path / "killed"
        kill(server, script, killed, after="Epoch 3")
        resumed = finish(server, script, killed)
        assert "resumed from" in resumed
        assert results(whole)[-1] == results(resumed)[-1]
        assert tensors(script, tmp_path / "whole") == tensors(script, killed)


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
