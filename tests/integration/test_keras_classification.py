"""The classification job under a Keras policy, as users run it, and Keras' examples."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amp_xla import backend
from tests.integration.test_classification import TINY, write_corpus
from tests.running import ROOT, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Half precision that this TensorFlow computes in on a CPU.
HALF = "mixed_bfloat16" if backend.kind() == "tf2" else "mixed_float16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("keras")
    write_corpus(path / "train.tsv", 300, 1)
    write_corpus(path / "dev.tsv", 80, 2)
    return path


def recipe(folder: Path, *flags: str) -> Any:
    words = ["-m", "recipes.keras_classification", "--train", "train.tsv", "--dev", "dev.tsv"]
    return run_python(*words, *TINY, *flags, cwd=folder)


def test_learns_under_a_policy_and_answers(folder: Path) -> None:
    result = recipe(folder, "--policy", HALF, "--epochs", "3", "--name", "half")
    assert result.code == 0, result.err
    assert f"Keras policy {HALF}" in result.err
    assert float(result.err.split("best dev accuracy ")[1].split()[0]) >= 0.95
    run = folder / "runs/keras_classification/half"
    executed = json.loads((run / "executed.json").read_text())
    assert executed["half_nodes"] > 100
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scale = 2.0**15 if HALF == "mixed_float16" else 1.0
    assert {line["loss_scale"] for line in lines if "loss" in line} == {scale}
    (folder / "texts.txt").write_text("the rain and the snow\nsalt in the soup\n")
    words = ["-m", "amp_xla", "predict", "--run", str(run), "--file", "texts.txt"]
    said = run_python(*words, cwd=folder)
    assert said.code == 0, said.err
    assert [row.split("\t")[0] for row in said.out.splitlines()] == ["weather", "kitchen"]


def test_stopped_by_a_signal_it_goes_on_bitwise(folder: Path) -> None:
    flags = ["--policy", HALF, "--epochs", "2", "--log-every", "1"]
    assert recipe(folder, *flags, "--name", "whole").code == 0
    runs = folder / "runs/keras_classification"
    words = ["-m", "recipes.keras_classification", "--train", "train.tsv", "--dev", "dev.tsv"]
    process = subprocess.Popen(
        [sys.executable, *words, *TINY, *flags, "--name", "cut"],
        cwd=str(folder), env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if b"step 5/" in line:
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert recipe(folder, *flags, "--name", "cut", "--resume").code == 0
    seen = []
    for name in ("whole", "cut"):
        lines = (runs / name / "metrics.jsonl").read_text().splitlines()
        seen.append([{k: v for k, v in json.loads(x).items() if "per_second" not in k}
                     for x in lines])  # fmt: skip
    assert seen[0] == seen[1]


def test_what_cannot_be_meant_together(folder: Path) -> None:
    both = recipe(folder, "--precision", "amp")
    assert both.code == 2 and "is a switch of the graph rewrite" in both.err
    other = recipe(folder, "--policy", "mixed_float8")
    assert other.code == 2 and "mixed_float8" in other.err and "mixed_bfloat16" in other.err
    if backend.kind() == "tf1":
        half = recipe(folder, "--policy", "mixed_bfloat16")
        assert half.code == 2 and "RUNTIME=tf2 has them" in half.err


@pytest.mark.skipif(backend.kind() != "tf2", reason="the examples are TensorFlow 2's")
@pytest.mark.parametrize(
    ("example", "policy"),
    [("keras_fit.py", "float32"), ("keras_fit.py", "mixed_float16"),
     ("keras_fit.py", "mixed_bfloat16"), ("keras_custom_loop.py", "mixed_float16")],
)  # fmt: skip
def test_keras_examples_learn(example: str, policy: str) -> None:
    small = ["--batch", "64", "--width", "64", "--samples", "2048", "--epochs", "6"]
    words = [str(ROOT / "examples" / example), "--policy", policy, *small]
    result = run_python(*words, cwd=ROOT)
    assert result.code == 0, result.err
    accuracy = re.findall(r"test accuracy ([\d.]+)", result.out)
    assert len(accuracy) == 1 and float(accuracy[0]) > 0.9, result.out
    assert f"{policy}: compute" in result.out
