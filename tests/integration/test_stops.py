"""Signals, bugs, a second process, disks that fail, non-finite numbers: what stays and goes on."""

import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

from amp_xla.training import checkpoint
from tests.support.killing import Run
from tests.support.running import run_python

pytestmark = pytest.mark.once


@pytest.fixture
def run(server, tmp_path):
    return Run(server, tmp_path)


def whole(run):
    """Names of the checkpoints, all of which must be whole."""
    found = checkpoint.steps(run.path / "checkpoints")
    assert [checkpoint.problems(path) for path in found] == [[] for _ in found]
    return [path.name for path in found]


@pytest.mark.slow
def test_signals_in_every_phase_end_in_good_order(run, reference):
    phases = [
        ({"main": 7}, "SIGTERM", 143, "before the first step"),
        ({"step": [2, "inside"]}, "SIGTERM", 143, "after step 3"),  # between micro-batches
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
    assert run({"step": [23, "before"], "signal": "SIGHUP", "deaf": True}) == 0
    assert (run.state(), run.samples()) == (reference.state(), reference.samples())


EVALUATIONS = """
import os, random, signal
import numpy as np
import amp_xla.setup
from amp_xla.backend import tf
from amp_xla.process.stopping import SignalWatch, Stopped
from amp_xla.training import distributed, evaluation
from amp_xla.training.step import Inference
x = tf.placeholder(tf.float32, [None, 64])
infer = Inference({"x": x}, {"y": tf.matmul(x, x, transpose_b=True), "sum": tf.reduce_sum(x)})
class Batches:
    def epoch(self, number):
        while True:
            yield {"x": np.ones((16, 64), "f4")}
names = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), random.choice(names)))
for _ in range(200):
    with SignalWatch() as watch:
        distributed.current().ask = lambda: watch.check("")
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.006))
        try:
            for batch in evaluation.shards(Batches()):
                infer(batch)
        except Stopped:
            pass
"""


def test_signals_at_any_moment_of_an_evaluation_crash_nothing():
    run_python("-c", EVALUATIONS)


def test_a_second_process_is_refused_and_a_second_signal_ends_at_once(servers, tmp_path):
    run, other = Run(servers[0], tmp_path), Run(servers[1], tmp_path)
    pid = run.start({"pause": 9})
    before = whole(run)
    other.log, other.out = tmp_path / "other.jsonl", tmp_path / "other.txt"
    assert other() == 2
    assert f"in use by process {pid} on {socket.gethostname()}" in other.text()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)  # passed on by a launcher: still the same request
    time.sleep(1.0)
    assert os.path.exists(f"/proc/{pid}")
    os.kill(pid, signal.SIGTERM)
    assert run.server.wait() == 143
    assert "second signal: ended at once" in run.text() and whole(run) == before
    assert run() == 0, run.text()


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=280k", "none", str(folder)])
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(server, small_disk, tmp_path):
    run = Run(server, small_disk)
    run.log, run.out = tmp_path / "log.jsonl", tmp_path / "out.txt"
    run.start({"pause": 9})
    before = whole(run)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (shutil.disk_usage(str(small_disk)).free - 20_000))
    assert run.go_on() == 2, run.text()
    for words in ("it needs", "No space left", f"{before[-1]} is whole: the same command"):
        assert words in run.text()
    assert "Traceback" not in run.text() and whole(run) == before
    ballast.unlink()
    assert run() == 0, run.text()


def test_a_repeated_evaluation_leaves_one_line_and_a_bug_a_traceback(run, reference):
    assert run({"evaluate": [0, 1], "signal": "SIGTERM"}) == 143
    assert run({"checkpoint": ["step-00000008.1", 1]}) == -9  # its line is written before
    assert run({"step": [13, "after"], "raise": "ValueError"}, checkpoint_every=0) == 1
    assert "Traceback (most recent call last)" in run.text() and "ValueError" in run.text()
    assert whole(run)[-1] == "step-00000008.1"
    assert run({"evaluate": [0, 1], "raise": "RecursionError"}) == 1
    assert run() == 0, run.text()
    assert run.state() == reference.state()


TROUBLE = dict(accumulate=1, nonfinite_limit=3, overflow_at=[9, 10, 11], first_scale=1024.0)


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


def test_stops_when_the_trouble_comes_back_or_cannot_be_rolled_back(server, tmp_path):
    run = Run(server, tmp_path / "again", **{**TROUBLE, "overflow_from": 9})
    assert run() == 2
    assert "and the run was already rolled back at step 12" in run.text()
    config = dict(accumulate=1, overflow_at=[2], first_scale=64.0, minimum=64.0)
    run = Run(server, tmp_path / "early", **config)
    assert run() == 2
    assert "at its smallest, and there is no earlier checkpoint" in run.text()


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


def test_a_forced_resume_names_what_differs(run):
    assert run({"step": [9, "before"]}) == -9
    assert run(config={"learning_rate": 0.01}, force_resume=True) == 0
    assert "resuming although this differs: setting learning_rate: 0.02" in run.text()


def test_a_run_that_starts_over_describes_itself_again(run):
    for step, recipe in ((2, "tiny"), (9, "tiny"), (10, "before")):  # step-00000005 continues
        assert run({"step": [step, "before"]}) == -9
        process = run.path / "run.json"
        assert json.loads(process.read_text())["recipe"] == recipe
        process.write_text('{"recipe": "before"}')


def test_warm_start_takes_weights_only(run, reference):
    assert run(resume=False, warm_start=str(reference.path)) == 0
    assert "warm start: weights of" in run.text()
    first, second = (each.metrics()[0] for each in (reference, run))
    assert second["step"] == first["step"] and second["loss"] < first["loss"]
    # The same command again, as a queue gives it: its own checkpoint counts.
    said, lines = len(run.text()), run.metrics()
    assert run(warm_start=str(reference.path)) == 0
    assert "resumed from" in run.text()[said:] and "warm start" not in run.text()[said:]
    assert run.metrics() == lines
