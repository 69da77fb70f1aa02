"""Several ranks train what one would, go on as any number, and none is left behind.

Real processes over Gloo, started as `make train NP=2` starts them. RANK_KILLS=20 RANK_STALLS=20
kills or stops one, and resumes, that often, at random moments.
"""

import operator
import os
import random
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import psutil
import pytest

from amp_xla import backend
from amp_xla.report import record
from amp_xla.training import checkpoint
from tests.support.commands import CLI, Commands
from tests.support.horovod import need_horovod
from tests.support.killing import repeatable
from tests.support.running import ROOT, Result, environment, until
from tests.tasks.classification.test_recipe import write_corpus
from tests.tasks.pretraining.test_recipe import prepared

SMALL = (
    "--train train.tsv --dev dev.tsv --vocab-size 200 --layers 2 --hidden 64 --max-length 24 "
    "--epochs 2 --log-every 1 --precision fp32 --checkpoint-every 3"
).split()
PRETRAINING = (
    "--data data --steps 6 --heldout 32 --log-every 1 --evaluate-every 3 --precision fp32 "
    "--global-batch 16 --micro-batch 4"
).split()
FLAGS = {"classification": SMALL, "pretraining": PRETRAINING}
# A key's bias moves all scores of a query alike: its gradient is zero, but for rounding, which Adam
# makes as large as any other.
NO_GRADIENT = ("dense_1/bias", "dense_7/bias", "dense_13/bias", "dense_1_bias")
KILLS = int(os.environ.get("RANK_KILLS", "2"))
STALLS = int(os.environ.get("RANK_STALLS", "1"))
pytestmark = [
    pytest.mark.horovod,
    pytest.mark.slow,
    pytest.mark.timeout(1260 + 120 * max(KILLS, STALLS)),
]


class Place:
    """A folder to train in."""

    def __init__(self, server, folder):
        self.folder = folder
        self.command = Commands(server, folder)

    def start(self, ranks, name, *flags, recipe="classification", grace=12):
        """Start ranks; ``grace``: seconds after which it kills those that have not ended."""
        program = f"from amp_xla.commands import cli, ranks; ranks._GRACE_SECONDS = {grace}"
        command = ["ranks", "--np", str(ranks), "--recipe", recipe, "--", "--name", name, *flags]
        return subprocess.Popen(
            [sys.executable, "-c", f"{program}; raise SystemExit(cli.main())", *command],
            cwd=str(self.folder),
            env=environment({"TF_CPP_MIN_LOG_LEVEL": "3"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def train(self, ranks, name, *flags, recipe="classification", code=0):
        """Train on ranks, 0 = in a process without them; return what is printed."""
        if not ranks:
            done = self.command(CLI, "train", "--recipe", recipe, "--", "--name", name, *flags)
            ended, out = done.code, done.out + done.err
        else:
            process = self.start(ranks, name, *flags, recipe=recipe)
            out = process.communicate(timeout=280)[0].decode()
            ended = process.returncode
        assert ended == code, out
        return out

    def run(self, name, recipe="classification"):
        return self.folder / "runs" / recipe / name

    def losses(self, name, recipe="classification"):
        return repeatable(self.run(name, recipe))

    def weights(self, name, recipe="classification"):
        return checkpoint.find(self.run(name, recipe), "last").tensors()


@pytest.fixture(scope="module")
def place(server, tmp_path_factory):
    need_horovod()
    here = Place(server, tmp_path_factory.mktemp("ranks"))
    write_corpus(here.folder / "train.tsv", 200, 1)
    write_corpus(here.folder / "dev.tsv", 32, 2)
    prepared(here.folder)
    return here


def from_start(place, recipe="classification"):
    """Return flags that take weights of a run, trained once.

    On 1.15 a seeded start depends on the number of operations.
    """
    if backend.kind() == "tf2":
        return []
    if not place.run("start", recipe).exists():
        length = "--epochs" if recipe == "classification" else "--steps"
        flags = [*FLAGS[recipe], "--dropout", "0", length, "1"]
        place.train(0, "start", *flags, recipe=recipe)
    return ["--warm-start", f"runs/{recipe}/start"]


def same(one, other, close=1e-6):
    """Weights, slots and counters, by the norm of their difference."""
    assert set(one) == set(other)
    apart = size = 0.0
    for name, value in one.items():
        if any(word in name for word in NO_GRADIENT):
            continue
        difference = np.linalg.norm((value.astype("f8") - other[name]).ravel())
        norm = np.linalg.norm(value.astype("f8").ravel())
        # Moments and sums hold differences of large numbers; a bias that began at zero is one.
        assert difference <= 20 * close * max(norm, 1e-30), name
        if "Adam" not in name and "/sum_" not in name:
            apart, size = np.hypot(apart, difference), np.hypot(size, norm)
    assert apart <= close * size


def alike(one, other, close=2e-6):
    """Two metrics.jsonl."""
    assert [sorted(line) for line in one] == [sorted(line) for line in other]
    for a, b in zip(one, other):
        for key, value in a.items():
            wanted = value if isinstance(value, str) else pytest.approx(value, rel=close, abs=1e-6)
            assert b[key] == wanted, (key, a, b)


CASES = {
    "buckets": ("classification", []),
    "packed": ("classification", ["--packed", "--accumulate", "3"]),
    "recomputed": ("classification", ["--recompute"]),
    "pretraining": ("pretraining", []),
}
OFTEN = ("buckets" if backend.kind() == "tf1" else "pretraining", 2)
OTHERS = (("buckets", 4), ("packed", 2), ("recomputed", 3), ("pretraining", 4))


@pytest.mark.parametrize(
    ("case", "ranks"), [OFTEN, *(pytest.param(*it, marks=pytest.mark.long) for it in OTHERS)]
)
def test_any_number_of_ranks_learns_the_same(place, case, ranks):
    recipe, flags = CASES[case]
    flags = [*FLAGS[recipe], *flags, "--dropout", "0", *from_start(place, recipe)]
    if not place.run(f"{case}-1", recipe).exists():
        place.train(0, f"{case}-1", *flags, recipe=recipe)
    said = place.train(ranks, f"{case}-{ranks}", *flags, recipe=recipe)
    assert f"{ranks} ranks share each batch" in said
    assert said.count("run folder: ") == 1  # one of them speaks
    alike(place.losses(f"{case}-1", recipe), place.losses(f"{case}-{ranks}", recipe))
    same(place.weights(f"{case}-1", recipe), place.weights(f"{case}-{ranks}", recipe))


@pytest.fixture(scope="module")
def whole(place):
    """Name of a run of three ranks that nobody disturbed."""
    place.train(3, "whole", *SMALL, *from_start(place), "--accumulate", "2")
    return "whole"


def rank_processes(launcher):
    found = {}
    for child in psutil.Process(launcher).children(recursive=True):
        try:
            number = child.environ().get("HOROVOD_RANK")
        except psutil.Error:
            continue
        if number is not None and int(number) not in found:
            found[int(number)] = child
    return found


def disturbed(process, run, lines, harm, victim=None):
    """Harm a rank (None = what started them) once its run has so many lines; wait for all ends."""
    metrics = run / "metrics.jsonl"

    def written():
        assert process.poll() is None, process.stdout.read().decode()
        return metrics.exists() and metrics.read_bytes().count(b"\n") >= lines

    until(written)
    ranks = rank_processes(process.pid)
    assert len(ranks) > 1 and sorted(ranks) == list(range(len(ranks)))
    everything = psutil.Process(process.pid).children(recursive=True)
    harm(psutil.Process(process.pid) if victim is None else ranks[victim])
    out = process.communicate(timeout=120)[0].decode()
    _, alive = psutil.wait_procs(everything, timeout=5)
    assert not alive, alive
    return Result(process.returncode, out, "")


def goes_on(place, name, whole, ranks):
    """Resumes a copy of the run on so many ranks, and compares it with an undisturbed one."""
    copy = f"{name}-on-{ranks}"
    shutil.copytree(str(place.run(name)), str(place.run(copy)), symlinks=True)
    # Ended before its first checkpoint, it begins anew, from the same weights.
    said = place.train(ranks, copy, *SMALL, *from_start(place), "--accumulate", "2", "--resume")
    assert checkpoint.steps(place.run(copy) / "checkpoints")
    if ranks == 3:
        assert place.losses(copy) == place.losses(whole)
        one, other = place.weights(whole), place.weights(copy)
        assert all((one[n] == other[n]).all() for n in one)
    else:  # other dropout masks
        assert f"{ranks} ranks instead of 3" in said
        assert "the same samples in the same updates, but other dropout masks" in said
        counts = ("step", "epoch", "samples", "applied_steps")
        one, other = (
            [{k: line[k] for k in counts if k in line} for line in place.losses(name)]
            for name in (whole, copy)
        )
        assert one == other


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "times", "code", "cause"),
    [
        ("SIGKILL", KILLS, 137, f"on {socket.gethostname()} was killed by SIGKILL"),
        ("SIGSTOP", STALLS, 75, "did not respond"),
    ],
)
def test_a_rank_that_dies_or_stalls_ends_all_and_the_run_goes_on(
    place, whole, number, times, code, cause
):
    for seed in range(times):
        name = f"{number}-{seed}"
        draw, lines = random.Random(seed), len(place.losses(whole))
        victim, lines = draw.choice([0, 1, 2]), draw.randrange(6, lines - 2)
        process = place.start(3, name, *SMALL, *from_start(place), "--accumulate", "2")
        harm = operator.methodcaller("send_signal", getattr(signal, number))
        done = disturbed(process, place.run(name), lines, harm, victim)
        assert done.code == code, done.out
        named = f"error: rank {victim} {cause}"
        assert done.out.count(named) == done.out.count("error: ") == 1, done.out
        if number == "SIGKILL":
            assert "is whole: " in done.out or "no checkpoint was written" in done.out, done.out
        goes_on(place, name, whole, 3)


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGUSR1", 0)])
def test_a_signal_to_the_starter_is_an_orderly_stop(place, whole, number, code):
    process = place.start(3, number, *SMALL, *from_start(place), "--accumulate", "2")
    harm = operator.methodcaller("send_signal", getattr(signal, number))
    done = disturbed(process, place.run(number), 5, harm)
    assert done.code == code, done.out
    assert f"stopped by {number} after step" in done.out
    assert "error: " not in done.out
    for ranks in (1, 2) if number == "SIGTERM" else (3, 4):
        goes_on(place, number, whole, ranks)


SLOW_DISK = """
from amp_xla.process import durable
from amp_xla.report import record
import time
own = durable.own
durable.own = lambda path: (time.sleep(7), own(path))
"""


@pytest.mark.once
def test_all_ranks_wait_for_the_last_checkpoint_of_a_stopped_run(place, tmp_path):
    """Its launcher kills, some seconds after one rank has ended, those that have not."""
    text = (ROOT / "recipes" / "pretraining.py").read_text()
    (tmp_path / "slow.py").write_text(text.replace("\nif __name__", f"{SLOW_DISK}\nif __name__"))
    flags = [*PRETRAINING, "--steps", "9999", "--evaluate-every", "9999"]
    process = place.start(2, "slow", *flags, recipe=str(tmp_path / "slow.py"), grace=4)
    run = place.run("slow", "slow")
    done = disturbed(process, run, 3, psutil.Process.terminate)
    assert done.code == 143, done.out
    newest = checkpoint.newest(run / "checkpoints")
    assert newest is not None and f"stopped by SIGTERM after step {newest.step};" in done.out
    assert record.read(run).state == "stopped"


@pytest.mark.long
def test_ranks_with_other_data_are_refused(place, tmp_path):
    rank, end = "__import__('os').environ['HOROVOD_RANK']", "    return context.text_job"
    apart = f"    type(data).fingerprints = {{**data.fingerprints, 'rank': {rank}}}\n{end}"
    text = (ROOT / "recipes" / "classification.py").read_text()
    assert end in text
    (tmp_path / "apart.py").write_text(text.replace(end, apart))
    said = place.train(2, "apart", *SMALL, recipe=str(tmp_path / "apart.py"), code=2)
    assert "rank 1 on " in said and "data rank: 0 on rank 0, 1 on rank 1" in said
