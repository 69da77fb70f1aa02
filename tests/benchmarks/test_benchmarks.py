"""The harness alternates and reports failures; the GPU benchmark resumes and refuses a CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import List

import pytest

from benchmarks import gpu, harness
from tests.running import run_python

pytestmark = pytest.mark.once

NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
SIDE = """
import sys, time
import numpy as np
from benchmarks import serve

def step(batch):
    assert sys.argv[1] != "broken" or batch[0].size < 6, "broken"
    time.sleep(0.001)
    return 1.5

def epoch(number):
    return iter([(np.zeros((2, length)), np.zeros(2)) for length in (1, 2, 3)])

serve.serve(epoch, serve.Contestant(step), lambda: 0.75)
"""


def side(name: str) -> List[str]:
    return [sys.executable, "-c", SIDE, name]


def test_contestants_take_turns(tmp_path: Path) -> None:
    results = harness.alternate({"a": side("a"), "b": side("broken")}, 2, 3, 60.0)
    good, broken = results["a"], results["b"]
    assert len(good.samples_per_second) == 2 and len(good.step_ms) == 6
    assert good.loss == 1.5 and good.peak_bytes > 0 and good.status == "ok"
    assert broken.status.startswith("crashed: exit code 1: AssertionError: broken")
    table = harness.render(results).splitlines()
    assert "1.00x" in table[2] and table[3].rstrip(" |").endswith("broken")
    trained = harness.alternate({"a": side("a")}, 2, 3, 60.0, epochs=2)["a"]
    assert trained.accuracy == 0.75 and len(trained.samples_per_second) == 1


def trial(out: Path, *words: str, code: int = 0) -> str:
    done = run_python("-m", "benchmarks.gpu", "--out", str(out), *words, env=NO_GPU)
    assert done.code == code, done.err
    return done.err


@pytest.mark.slow
def test_a_trial_measures_only_missing_rows(tmp_path: Path) -> None:
    out = tmp_path / "new" / "gpu"
    words = ["--trial", "--steps", "2", "--peer", "/nowhere/python", "--only"]
    trial(out, *words, "at 16, fp32")
    first = out.with_suffix(".json").read_text()
    said = trial(out, *words, "at 16, fp32;at 16, PyTorch bf16 compiled", code=1)
    assert "fp32" not in said and "PyTorch bf16 compiled, batch 4: refused: " in said
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert json.loads(first)["rows"] == rows[:1] and rows[0]["status"] == "ok"
    assert len(rows[0]["seconds"]) == 2 and rows[0]["loss"] > 0 and rows[0]["peak_bytes"] > 1e8
    page = out.with_suffix(".md").read_text()
    assert "not a result" in page and "| fp32 " in page


@pytest.mark.parametrize(
    "words, why",
    [
        ([], "error: no GPU that TensorFlow "),
        (["--trial", "--only", "fp16"], "--only fp16: no such row; allowed: parts of tiny at 16"),
    ],
)
def test_refused(tmp_path: Path, words: List[str], why: str) -> None:
    said = trial(tmp_path / "gpu", *words, code=2)
    assert why in said and not list(tmp_path.iterdir())


def test_the_committed_page_is_what_the_record_says() -> None:
    """After a change of the page: ``python -m benchmarks.gpu --render``."""
    page = gpu.PAGE.with_suffix(".md").read_text(encoding="utf-8")
    assert page == gpu.render(gpu.read(gpu.PAGE), trial=False)
