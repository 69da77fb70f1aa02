"""Keras' examples, as users run them."""

from __future__ import annotations

import re

import pytest

from amp_xla import backend
from tests.running import ROOT, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.skipif(backend.kind() != "tf2", reason="the examples are TensorFlow 2's")
@pytest.mark.parametrize(
    ("example", "policy"),
    [("keras_fit.py", "mixed_float16"), ("keras_fit.py", "mixed_bfloat16"),
     ("keras_custom_loop.py", "mixed_float16")],
)  # fmt: skip
def test_keras_examples_learn(example: str, policy: str) -> None:
    small = ["--batch", "64", "--width", "64", "--samples", "2048", "--epochs", "6"]
    words = [str(ROOT / "examples" / example), "--policy", policy, *small]
    result = run_python(*words, cwd=ROOT)
    assert result.code == 0, result.err
    accuracy = re.findall(r"test accuracy ([\d.]+)", result.out)
    assert len(accuracy) == 1 and float(accuracy[0]) > 0.9, result.out
    assert f"{policy}: compute" in result.out
