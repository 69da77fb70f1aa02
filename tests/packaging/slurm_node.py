"""Slurm on this machine alone: one node of two cores, everything it writes in one folder."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import List

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
# Debian's are where a user's PATH does not lead.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
# cred_expire is also how long Slurm holds a job back that was queued again; its default is 120 s.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes={host} PriorityTier=9 PreemptMode=OFF
"""


def missing() -> List[str]:
    """Programs that Slurm needs and this machine has not."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Node:
    """``with Node(folder) as node``: Slurm runs, and ``node.call("sbatch", ...)`` talks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))},
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._started: List[subprocess.Popen] = []

    def __enter__(self) -> Node:
        self.folder.chmod(0o755)  # munged's condition
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=self.folder,
            ports=free_ports(2),
        )
        (self.folder / "slurm.conf").write_text(text)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        munge = [
            f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")
        ]
        try:
            self._start("munged", "-F", "--force", f"--socket={self.folder}/munge.socket", *munge)
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D")
            self._until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start(self, *words: str) -> None:
        with open(self.folder / f"{words[0]}.out", "wb") as out:
            self._started.append(
                subprocess.Popen(words, env=self.environment, stdout=out, stderr=out)
            )

    def _until_idle(self) -> None:
        end = time.monotonic() + 30
        while "IDLE" not in self.call("scontrol", "show", "node", check=False):
            ended = [p.args for p in self._started if p.poll() is not None]
            assert not ended and time.monotonic() < end, (ended, self.logs())
            time.sleep(0.3)

    def logs(self) -> str:
        """What the three have said last."""
        files = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
        return "\n".join(f"{f.name}: {f.read_text(errors='replace')[-1500:]}" for f in files)

    def call(self, *words: str, cwd: str = "/", check: bool = True, **environment: str) -> str:
        """One of Slurm's commands; returns what it prints."""
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert not check or done.returncode == 0, (words, done.stderr, self.logs())
        return done.stdout.strip()


def free_ports(count: int) -> List[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    for found in sockets:
        found.bind(("", 0))
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
