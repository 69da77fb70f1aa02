"""Non-finite numbers: rolled back once; what is taken from a run that is resumed."""

from __future__ import annotations

import datetime
import json
from typing import Any, Dict

import numpy as np
import pytest

from amp_xla.training import checkpoint
from tests.support.killing import Run

TROUBLE = dict(accumulate=1, nonfinite_limit=3, overflow_at=[9, 10, 11], first_scale=1024.0)


@pytest.mark.once
def test_rolls_back_once_and_goes_on_with_the_next_batches(server, tmp_path):
    run = Run(server, tmp_path / "a", **TROUBLE)
    assert run() == 0, run.text()
    assert "3 skipped in a row: rolled back to step-00000008" in run.text()
    assert [step for step, *_ in run.records("samples")] == list(range(24))
    state = checkpoint.read_state(run.path / "checkpoints" / "step-00000024")["loop"]
    assert (state["rolled_back_at"], state["skipped"], state["step"]) == (12, 3, 24)
    for path in checkpoint.steps(run.path / "checkpoints"):
        for name, array in checkpoint.Checkpoint(path).tensors().items():
            assert np.isfinite(array).all(), (path, name)
    # Killed inside and after the trouble, it ends the same.
    again = Run(server, tmp_path / "b", **TROUBLE)
    for at in ([11, "after"], [13, "before"]):
        assert again({"step": at}) == -9
    assert again() == 0
    assert again.state() == run.state()


@pytest.mark.once
def test_stops_when_the_trouble_comes_back_or_cannot_be_rolled_back(server, tmp_path):
    run = Run(server, tmp_path / "again", **{**TROUBLE, "overflow_from": 9})
    assert run() == 2
    assert "and the run was already rolled back at step 12" in run.text()
    config: Dict[str, Any] = dict(accumulate=1, overflow_at=[2], first_scale=64.0, minimum=64.0)
    run = Run(server, tmp_path / "early", **config)
    assert run() == 2
    assert "at its smallest, and there is no earlier checkpoint" in run.text()


@pytest.mark.once
def test_nan_evaluations_stop_a_run_early_and_each_window_has_a_line(server, tmp_path):
    run = Run(server, tmp_path, epochs=9, patience=2, nan_evaluations=True, log_every=5)
    assert run() == 0, run.text()
    assert "stopping early" in run.text()
    lines = run.metrics()
    assert [line["epoch"] for line in lines if line["kind"] == "dev"] == [1, 2]
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == [5, 10, 15, 16], "the last window has fewer steps"
    for line in lines:
        assert datetime.datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S+00:00")


@pytest.mark.once
@pytest.mark.parametrize("policy", ["stop", "report"])
def test_policies(server, tmp_path, policy):
    run = Run(server, tmp_path)
    assert run(on_nonfinite=policy) == (2 if policy == "stop" else 0)
    assert run.text().count("step 3: loss inf at loss scale 128, not finite") == 1


@pytest.mark.once
def test_a_forced_resume_names_what_differs(server, tmp_path):
    run = Run(server, tmp_path)
    assert run({"step": [9, "before"]}) == -9
    assert run(config={"learning_rate": 0.01}, force_resume=True) == 0
    assert "resuming although this differs: setting learning_rate: 0.02" in run.text()


@pytest.mark.once
def test_a_run_that_starts_over_describes_itself_again(server, tmp_path):
    run = Run(server, tmp_path)
    for step, recipe in ((2, "tiny"), (9, "tiny"), (10, "before")):  # step-00000005 continues
        assert run({"step": [step, "before"]}) == -9
        process = run.path / "run.json"
        assert json.loads(process.read_text())["recipe"] == recipe
        process.write_text('{"recipe": "before"}')


@pytest.mark.once
def test_warm_start_takes_weights_only(server, reference, tmp_path):
    new = Run(server, tmp_path)
    assert new(resume=False, warm_start=str(reference.path)) == 0
    assert "warm start: weights of" in new.text()
    first, second = (run.metrics()[0] for run in (reference, new))
    assert second["step"] == first["step"] and second["loss"] < first["loss"]
    # The same command again, as a queue gives it: its own checkpoint counts.
    said, lines = len(new.text()), new.metrics()
    assert new(warm_start=str(reference.path)) == 0
    assert "resumed from" in new.text()[said:] and "warm start" not in new.text()[said:]
    assert new.metrics() == lines
