"""The examples learn, and one continues from an earlier checkpoint to the same bits.

Those whose training takes longer are killed after their first evaluation; `-m long` ends them.
"""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.support.commands import Commands
from tests.support.killing import state
from tests.support.running import ROOT, run_python, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Script -> pattern of its last result, and the minimum result from random weights.
SCRIPTS = {
    "ner_crf": (r"epoch 3/3 .* dev f1 ([\d.]+)", 0.9),
    "similarity": (r"epoch 5/5 .* dev accuracy ([\d.]+)", 0.8),
    "relations_gplinker": (r"epoch 10/10 .* dev f1 ([\d.]+)", 0.8),
    "masked_language_model": (r"epoch 8/8 .* dev accuracy ([\d.]+)", 0.4),
    "keras_policy": (r"epoch 2/2 .* dev .*?acc\w* ([\d.]+)", 0.9),
}
# Run on both TensorFlows and continued on these; on 2.17 a policy's float16 is slow, so for long.
CONTINUED = {"ner_crf": ["tf2"], "keras_policy": ["tf1", "tf2"]}
KIND = backend.kind()


def finish(server, script, folder):
    """Run a script to its end in a folder; return its output."""
    folder.mkdir(exist_ok=True)
    done = Commands(server, folder).job({"script": str(ROOT / "examples" / f"{script}.py")})
    assert done.code == 0, done.out + done.err
    return done.out + done.err


OTHERS = sorted(set(SCRIPTS) - ({"ner_crf"} if KIND == "tf2" else set(CONTINUED)))


@pytest.mark.once
@pytest.mark.parametrize("script", OTHERS)
def test_it_trains_and_is_evaluated(server, script, tmp_path):
    path, out = ROOT / "examples" / f"{script}.py", tmp_path / "out.txt"
    out.touch()
    pid = server.start({"cwd": str(tmp_path), "script": str(path), "out": str(out)})
    until(lambda: "epoch 1/" in out.read_text("utf-8", errors="ignore"))
    os.kill(pid, signal.SIGKILL)
    assert server.wait() == -9
    said = out.read_text("utf-8")
    assert "first step ran: " in said and "resuming is not exact" not in said
    assert script != "keras_policy" or "executed nodes are float16" in said


@pytest.mark.parametrize(
    "script", [pytest.param(x, marks=[pytest.mark.long] * (x in OTHERS)) for x in SCRIPTS]
)
def test_it_learns_and_continues(server, script, tmp_path):
    whole = finish(server, script, tmp_path / "whole")
    result, least = SCRIPTS[script]
    score = re.search(result, whole)
    assert score and float(score.group(1)) >= least, whole
    assert "first step ran: " in whole and "resuming is not exact" not in whole
    if script == "keras_policy":
        assert "executed nodes are float16" in whole and re.search(r"[1-9] skipped\)", whole)
    if KIND in CONTINUED.get(script, ()):
        killed, run = tmp_path / "killed", Path("runs", script)  # after the last checkpoint but one
        shutil.copytree(str(tmp_path / "whole"), str(killed), symlinks=True)
        shutil.rmtree(str(checkpoint.steps(killed / run / "checkpoints")[-1]))
        assert "resumed from" in finish(server, script, killed)
        assert state(tmp_path / "whole" / run) == state(killed / run)


@pytest.mark.skipif(KIND != "tf2", reason="this example is TensorFlow 2's")
def test_the_keras_example_learns():
    policy = "mixed_bfloat16"
    small = ["--batch", "64", "--width", "64", "--samples", "2048", "--epochs", "6"]
    words = [str(ROOT / "examples" / "keras_fit.py"), "--policy", policy, *small]
    result = run_python(*words)
    accuracy = re.findall(r"test accuracy ([\d.]+)", result.out)
    assert len(accuracy) == 1 and float(accuracy[0]) > 0.9, result.out
    assert f"{policy}: compute" in result.out
