"""Signals, bugs, a second process, and disks that fail: the last checkpoint stays good, always."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Iterator, List

import pytest

from amp_xla.training import checkpoint
from tests.integration.killing import Run, Server


def whole(run: Run) -> List[str]:
    """Names of the checkpoints, all of which must be whole."""
    found = checkpoint.steps(run.path / "checkpoints")
    assert [checkpoint.problems(path) for path in found] == [[] for _ in found]
    return [path.name for path in found]


@pytest.mark.slow
def test_signals_in_every_phase_end_in_good_order(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path)
    phases = [
        ({"main": 7}, "SIGTERM", 143, "before the first step"),
        ({"step": [2, "before"]}, "SIGTERM", 143, "after step 3"),
        ({"restore": "after"}, "SIGUSR1", 0, "before the first step"),
        ({"step": [3, "after"]}, "SIGINT", 130, "after step 4"),
        ({"evaluate": [0, 1]}, "SIGTERM", 143, "after step 8"),
        ({"evaluate": [0, 2]}, "SIGINT", 130, "after step 8"),
        # From the writer's thread, which a slow disk leaves far behind the loop. Of an evaluation's
        # checkpoint: one by the count of steps waits for the one before it, and has no fixed name.
        ({"checkpoint": ["step-00000016", 1], "hold": 17}, "SIGUSR1", 0, "after step"),
        ({"step": [21, "before"]}, "SIGHUP", 129, "after step 22"),
        ({"step": [22, "before"]}, "SIGTERM", 143, "after step 23"),
    ]
    for fault, name, code, where in phases:
        said = len(run.text())
        assert run({**fault, "signal": name}) == code, run.text()
        assert f"stopped by {name} {where}" in run.text()[said:]
        assert "Traceback" not in run.text()
        if "after step" in where:
            step = int(run.text()[said:].split("after step ")[1].split(";")[0])
            assert whole(run)[-1].startswith(f"step-{step:08d}")
    assert run() == 0
    assert run.state() == reference.state()
    assert run.samples() == reference.samples()


@pytest.mark.once
def test_a_second_signal_ends_at_once(
    servers: List[Server], reference: Run, tmp_path: Path
) -> None:
    run = Run(servers[0], tmp_path)
    pid = run.start({"pause": 9})
    before = whole(run)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)  # passed on by a launcher: still the same request
    time.sleep(1.0)
    assert os.path.exists(f"/proc/{pid}")
    os.kill(pid, signal.SIGTERM)
    assert run.server.wait() == 143
    assert "second signal: ended at once" in run.text()
    assert whole(run) == before
    assert run() == 0
    assert run.state() == reference.state()


@pytest.mark.once
def test_a_second_process_is_refused(servers: List[Server], tmp_path: Path) -> None:
    run = Run(servers[0], tmp_path)
    pid = run.start({"pause": 6})
    other = Run(servers[1], tmp_path)
    other.log = tmp_path / "other.jsonl"
    other.out = tmp_path / "other.txt"
    assert other() == 2
    assert f"in use by process {pid} on {socket.gethostname()}" in other.text()
    assert run.go_on() == 0, run.text()
    assert other(resume=False) == 2
    assert "continue it with --resume" in other.text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=280k", "none", str(folder)])
    if mounted.returncode:
        pytest.skip("mounting needs root; test_checkpoint.py covers the refusal without it")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.once
def test_a_full_disk(servers: List[Server], small_disk: Path, tmp_path: Path) -> None:
    run = Run(servers[0], small_disk)
    run.log, run.out = tmp_path / "log.jsonl", tmp_path / "out.txt"
    run.start({"pause": 9})
    before = whole(run)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (shutil.disk_usage(str(small_disk)).free - 20_000))
    assert run.go_on() == 2, run.text()
    assert "it needs" in run.text()
    assert "No space left" in run.text()
    assert "Traceback" not in run.text()
    assert f"{before[-1]} is whole: resuming continues" in run.text()
    assert whole(run) == before
    ballast.unlink()
    assert run() == 0, run.text()


@pytest.mark.once
def test_a_folder_that_becomes_read_only(servers: List[Server], tmp_path: Path) -> None:
    run = Run(servers[0], tmp_path)
    run.start({"pause": 9})
    folder = str(run.path / "checkpoints")
    before = whole(run)
    if subprocess.run(["mount", "--bind", folder, folder]).returncode:
        run.go_on()
        pytest.skip("mounting needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        assert run.go_on() == 2
        assert "Read-only file system; it needs" in run.text()
        assert f"{before[-1]} is whole" in run.text()
        assert whole(run) == before
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    subprocess.run(["mount", "--bind", str(run.path), str(run.path)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(run.path)], check=True)
        assert run() == 2
        assert "cannot write the run folder" in run.text()
        assert "Traceback" not in run.text()
    finally:
        subprocess.run(["umount", "-l", str(run.path)], check=True)
    assert run() == 0


@pytest.mark.once
def test_a_folder_that_is_deleted_under_way(servers: List[Server], tmp_path: Path) -> None:
    run = Run(servers[0], tmp_path)
    run.start({"pause": 9})
    shutil.rmtree(str(run.path))
    assert run.go_on() == 2, run.text()
    assert "cannot write the checkpoint" in run.text()
    assert "No such file or directory; it needs" in run.text()
    assert "Traceback" not in run.text()


@pytest.mark.once
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


@pytest.mark.once
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


@pytest.mark.once
def test_an_epoch_without_batches_is_an_error(servers: List[Server], tmp_path: Path) -> None:
    run = Run(servers[0], tmp_path, empty=True)
    assert run() == 2
    assert "error: epoch 1 has 0 batches" in run.text()
