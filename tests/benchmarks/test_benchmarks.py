"""The GPU benchmark resumes, reports what failed, and refuses a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

import pytest

from benchmarks import gpu
from tests.running import run_python

pytestmark = pytest.mark.once

NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}


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
