"""Bugs, lost terminals and closed pipes: a run can be resumed from its last checkpoint."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import List

from tests.integration.killing import Run, Server
from tests.integration.test_stops import whole


def test_a_bug_is_a_traceback_and_the_run_can_be_resumed(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path)
    assert run({"step": [13, "after"], "raise": "ValueError"}, checkpoint_every=0) == 1
    assert "Traceback (most recent call last)" in run.text() and "ValueError" in run.text()
    assert whole(run)[-1] == "step-00000008"
    assert run({"evaluate": [1, 1], "raise": "RecursionError"}) == 1
    assert run() == 0, run.text()
    assert run.state() == reference.state()


def test_a_lost_terminal(servers: List[Server], reference: Run, tmp_path: Path) -> None:
    """SIGHUP stops in good order, with nobody left to tell; ignored, it does not."""
    run = Run(servers[0], tmp_path)
    pid = run.start({"pause": 6, "close": 6})
    os.kill(pid, signal.SIGHUP)
    assert run.go_on() == 129
    assert whole(run)[-1] == "step-00000007"
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
    assert "error: epoch 1 has 0 batches" in run.text()
