"""scripts/slurm/train.sbatch, with small programs in place of Slurm's commands."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT, shell_environment, until

pytestmark = pytest.mark.once
SCRIPT = ROOT / "scripts" / "slurm" / "train.sbatch"
# This srun writes down its arguments. It ends once the file $END exists, or with 0 after SIGUSR1.
PROGRAMS = {
    "srun": """trap 'exit 0' USR1
printf '%s\\n' "${0##*/}" "$@" > "$WORDS.new" && mv "$WORDS.new" "$WORDS"
while [ ! -e "$END" ]; do sleep 0.05; done
exit 75
""",
    "scontrol": 'echo "$@" > "$WORDS.scontrol"\n',
    "amp-xla": f"echo {sys.executable}\n",
}


@pytest.fixture
def checkout(tmp_path):
    """Make a folder like a checkout, whose environment is this Python."""
    (tmp_path / "recipes").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(checkout, container=""):
    """Start the script; return it once srun runs."""
    variables = dict(
        PATH=f"{checkout}:{os.environ['PATH']}", WORDS=str(checkout / "words"),
        END=str(checkout / "end"), SLURM_SUBMIT_DIR=str(checkout), SLURM_JOB_ID="7",
        SLURM_CPUS_PER_TASK="8", CONTAINER=container, DATA="/d",
    )  # fmt: skip
    script = subprocess.Popen(
        ["bash", str(SCRIPT), "--epochs", "3"],
        cwd=str(checkout),
        env=shell_environment(**variables),
    )
    until((checkout / "words").exists)
    return script


@pytest.mark.parametrize(
    ("container", "started"),
    [
        ("", [sys.executable]),
        ("i.sif", "apptainer exec --nv --bind {0},/d:/d:ro --pwd {0} i.sif python3".split()),
        ("nvcr.io#a/b:1", ["--container-image=nvcr.io#a/b:1", "--container-workdir={0}",
                           "--container-mounts={0}:{0},/d:/d:ro", "python3"]),
    ],
)  # fmt: skip
def test_one_script_for_all_containers(checkout, container, started):
    (checkout / "end").touch()
    assert start(checkout, container).wait(30) == 75  # the exit code of a lost rank
    rank = "-m amp_xla ranks --slurm --recipe classification -- --name slurm-7 --resume"
    assert (checkout / "words").read_text().splitlines() == [
        *("srun", "--wait=300", "--cpus-per-task=8"),
        *(word.format(checkout) for word in started),
        *rank.split(),
        *("--epochs", "3"),
    ]
    assert not (checkout / "words.scontrol").exists()


def test_a_preempted_job_is_queued_again(checkout):
    script = start(checkout)
    caught = r"SigCgt:.*[2367abef]..\n"  # signal 10 is SIGUSR1, so the script has set its trap
    until(lambda: re.search(caught, Path(f"/proc/{script.pid}/status").read_text()))
    script.send_signal(signal.SIGUSR1)
    assert script.wait(30) == 0
    assert (checkout / "words.scontrol").read_text() == "requeue 7\n"
