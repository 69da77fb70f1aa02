"""Faults of our own, lost terminals, closed pipes: what was learnt is on disk, and it is said."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.integration.killing import Run, Server
from tests.integration.test_stops import whole

PLANTED = "a planted fault of two lines"


def fault(run: Run, spec: Dict[str, Any], **more: Any) -> str:
    """Runs into a fault; returns the one line that it printed about it."""
    said = len(run.text())
    assert run(spec, **more) == 70, run.text()
    text = run.text()[said:]
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and text.endswith(lines[0] + "\n"), text
    assert "Traceback (most recent call last)" in (run.path / "crash.txt").read_text()
    assert lines[0].endswith("the traceback is in runs/tiny/run/crash.txt")
    return lines[0]


def test_a_fault_between_two_steps_loses_nothing(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path)
    line = fault(run, {"step": [3, "before"], "raise": "MemoryError"})
    assert f"in step 4 of training: MemoryError: {PLANTED}" in line
    assert "step-00000003 is whole: the same command with --name run --resume goes on" in line
    line = fault(run, {"evaluate": [0, 1], "raise": "RecursionError"})
    assert "after step 8 of training: RecursionError" in line and "step-00000008 is whole" in line
    text = (run.path / "crash.txt").read_text()
    for word in ("tensorflow ", "bert4keras ", "amp_xla ", "Python ", "tests/integration"):
        assert word in text
    assert run() == 0, run.text()
    assert run.state() == reference.state()
    assert run.samples() == reference.samples()


def test_a_fault_within_a_step_saves_no_half_changed_weights(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path)
    # Only evaluations save: a checkpoint by the count of steps waits while the one before it is
    # still written, and a slow disk would put it right before the fault.
    line = fault(run, {"step": [13, "after"], "raise": "ValueError"}, checkpoint_every=0)
    assert "in step 14 weights may be half changed, so nothing new was saved" in line
    assert whole(run)[-1] == "step-00000008" and "; step-00000008 is whole" in line
    line = fault(run, {"restore": "after", "raise": "LookupError"})
    assert "before the first step: LookupError" in line
    assert run() == 0, run.text()
    assert run.state() == reference.state()


@pytest.mark.parametrize("accumulate, saved", [(1, True), (2, False)])
def test_an_error_of_tensorflow(
    servers: List[Server], tmp_path: Path, accumulate: int, saved: bool
) -> None:
    """In the forward pass no weight has changed; with accumulation, sums may have."""
    run = Run(servers[0], tmp_path, accumulate=accumulate, fail_at=7)
    line = fault(run, {})
    assert "in step 8 of training: InvalidArgumentError" in line
    assert whole(run)[-1:] == ["step-00000007" if saved else "step-00000006"]
    assert ("may be half changed" in line) != saved


def test_a_fault_whose_checkpoint_cannot_be_written(servers: List[Server], tmp_path: Path) -> None:
    run = Run(servers[0], tmp_path)
    run.start({"pause": 9, "step": [9, "before"], "raise": "ValueError"})
    shutil.rmtree(str(run.path / "checkpoints"))
    assert run.go_on() == 70
    line = run.text().splitlines()[-1]
    assert "no checkpoint of step 9 could be written (CheckpointError: cannot write" in line
    assert "no checkpoint was written yet; the traceback is in" in line


def test_a_lost_terminal(servers: List[Server], reference: Run, tmp_path: Path) -> None:
    """SIGHUP stops in good order, with nobody left to tell; ignored, it does not."""
    run = Run(servers[0], tmp_path)
    pid = run.start({"pause": 6, "close": 6})
    os.kill(pid, signal.SIGHUP)
    assert run.go_on() == 129
    assert whole(run)[-1] == "step-00000007"
    assert "stopped by SIGHUP after step 7" in (run.path / "output.txt").read_text()
    pid = run.start({"pause": 12, "deaf": True})
    os.kill(pid, signal.SIGHUP)
    assert run.go_on() == 0
    assert run.state() == reference.state()


def test_a_closed_pipe_does_not_stop_a_run(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path)
    assert run({"close": 9}) == 0
    assert run.state() == reference.state()
    text = (run.path / "output.txt").read_text()
    assert "standard error takes no more (Broken pipe); it goes on here\n" in text
    assert "step 12/24" in text and "step 9/24" not in text
    assert "done: best dev loss" in text


def test_epochs_without_number_are_no_work_before_the_first(
    servers: List[Server], tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path, epochs=10**12)
    began = time.monotonic()
    assert run({"step": [2, "before"], "signal": "SIGTERM"}) == 143
    assert time.monotonic() - began < 60
    assert "stopped by SIGTERM after step 3" in run.text()


def test_an_epoch_without_batches_is_an_error(servers: List[Server], tmp_path: Path) -> None:
    run = Run(servers[0], tmp_path, empty=True)
    assert run() == 2
    assert "error: epoch 0 has 0 batches" in run.text()
