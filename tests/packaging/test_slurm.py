"""scripts/slurm/train.sbatch on a real Slurm of one node: two tasks train, are preempted, go on."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from tests.horovod import need_horovod
from tests.integration.test_classification import TINY, write_corpus
from tests.packaging.checkout import ROOT, run
from tests.packaging.slurm_node import Node, missing

SCRIPT = ROOT / "scripts" / "slurm" / "train.sbatch"
WRITES = """#!/bin/sh
printf '%s\\n' "${0##*/}" "$@" > "$WORDS"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a checkout, whose environment is this Python."""
    made = tmp_path / "checkout"
    made.mkdir()
    for name in ("amp_xla", "recipes"):
        (made / name).symlink_to(ROOT / name)
    script = made / "amp-xla"
    script.write_text(f"#!/bin/sh\necho {sys.executable}\n")
    script.chmod(0o755)
    return made


def until(
    condition: Callable[[], bool], what: str, text: Callable[[], str], seconds: float
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not seen in {seconds} s: {what}\n{text()}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.once
@pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: no {', '.join(missing())}")
def test_two_tasks_train_are_preempted_and_go_on(checkout: Path, tmp_path: Path) -> None:
    need_horovod()
    write_corpus(checkout / "train.tsv", 4000, 1)
    write_corpus(checkout / "dev.tsv", 80, 2)
    (tmp_path / "slurm").mkdir()
    with Node(tmp_path / "slurm") as node:
        words = ["--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "99"]
        submit = ["sbatch", "--parsable", "--ntasks=2"]
        job = node.call(*submit, str(SCRIPT), *words, cwd=str(checkout))
        log = checkout / f"slurm-{job}.out"

        def said() -> str:
            return log.read_text() if log.exists() else node.logs()

        def state() -> str:
            return node.call("squeue", "--noheader", "--format=%T", f"--jobs={job}", check=False)

        until(lambda: "step 10/" in said(), "step 10", said, 60)
        assert "2 ranks share each batch" in said()

        # A job of a better partition takes both cores: Slurm sends SIGUSR1, and waits.
        node.call(*submit, "--partition=high", "--wrap=srun sleep 1", cwd=str(checkout))
        until(lambda: "is queued again" in said(), "the orderly stop", said, 60)
        stopped = re.search(r"stopped by SIGUSR1 after step (\d+)", said())
        assert stopped is not None, said()
        until(lambda: state() == "RUNNING", "running again", said, 60)

        after = int(stopped.group(1))
        later = f"step {after + 5 - after % 5}/"
        until(lambda: later in said(), later, said, 60)
        assert said().count("no checkpoint yet") == 1

        # scancel sends SIGTERM, which is an orderly stop as well.
        node.call("scancel", job)
        until(lambda: state() == "", "the end", said, 60)
        assert "stopped by SIGTERM after step" in said()
    run = checkout / "runs" / "classification" / f"slurm-{job}"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines if '"step"' in line]
    assert steps == sorted(steps) and steps[-1] > after


@pytest.mark.once
@pytest.mark.parametrize(
    ("container", "started"),
    [
        ("", [sys.executable]),
        ("i.sif", "apptainer exec --nv --bind {0},/d:/d:ro --pwd {0} i.sif python3".split()),
        (
            "nvcr.io#a/b:1",
            [
                "--container-image=nvcr.io#a/b:1",
                "--container-workdir={0}",
                "--container-mounts={0}:{0},/d:/d:ro",
                "python3",
            ],
        ),
    ],
)
def test_one_script_for_all_containers(checkout: Path, container: str, started: list) -> None:
    (checkout / "bin").mkdir()
    srun = checkout / "bin" / "srun"
    srun.write_text(WRITES)
    srun.chmod(0o755)
    done = run(
        [shutil.which("bash") or "bash", str(SCRIPT), "--epochs", "3"],
        root=checkout,
        PATH=f"{srun.parent}:/usr/bin:/bin",
        WORDS=str(checkout / "words"),
        SLURM_SUBMIT_DIR=str(checkout),
        SLURM_JOB_ID="7",
        SLURM_CPUS_PER_TASK="8",
        CONTAINER=container,
        DATA="/d",
    )
    assert done.returncode == 0, done.stderr
    rank = "-m amp_xla ranks --hosts slurm --recipe classification -- --name slurm-7 --resume"
    assert (checkout / "words").read_text().splitlines() == [
        *("srun", "--wait=300", "--cpus-per-task=8"),
        *(word.format(checkout) for word in started),
        *rank.split(),
        *("--epochs", "3"),
    ]
