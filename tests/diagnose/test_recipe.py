"""``rehearse`` on a real recipe, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import run_python

SMALL = ["--layers", "2", "--hidden", "64", "--max-length", "48", "--batch-size", "16"]


@pytest.mark.slow
def test_fifty_steps_of_classification_stay_within_one_percent(tmp_path: Path) -> None:
    words = ["rehearse", "--steps", "50", "--out", str(tmp_path), "--", *SMALL]
    done = run_python("-m", "amp_xla", *words)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "rehearsal.json").read_text())
    steps = report["steps"]
    assert [step["step"] for step in steps] == list(range(50))
    assert all(step["finite"] and step["loss_scale"] == 1000.0 for step in steps)
    differences = [abs(s["half_loss"] / s["float32_loss"] - 1.0) for s in steps]
    assert 0.0 < max(differences) < 0.01
    assert report["finding"] is None
    assert 1024 <= report["suggested_loss_scale"] <= 2**20
    layers = {layer["layer"]: layer for layer in report["layers"]}
    attention = layers["Transformer-1-MultiHeadSelfAttention"]
    assert 0.0 < attention["largest_activation"] < 1.0
    assert 0.0 < attention["gradient_error"] < 0.05
    assert "suggested constant loss scale" in done.out
