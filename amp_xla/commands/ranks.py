"""``amp-xla ranks --np 2 -- --recipe ...``: one training on several GPUs or machines.

    make train RECIPE=classification NP=2
    make train RECIPE=classification NP=16 HOSTS=a:8,b:8

Starts the recipe's command once for each rank, as Horovod's own starter would, and keeps an eye on
all of them: the first rank speaks, a signal reaches it, and when one ends with an error the others
are ended too and the cause is said once. mpirun can start the recipe's command itself, and srun
this one: with HOSTS=slurm each of its tasks becomes a rank (scripts/slurm/train.sbatch).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from amp_xla.backend import nvidia
from amp_xla.commands import slurm
from amp_xla.config import parse, split_words
from amp_xla.errors import AmpXlaError
from amp_xla.process.typed import ROOT, in_checkout

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
# After the first rank has ended with an error: time in which the others may end by themselves, and
# the first of them write a checkpoint. Then they are killed.
_GRACE_SECONDS = 12.0
_LOST = 75  # what a rank returns that another one has left alone
_KEPT_LINES = 40
# What a remote shell is told of this one's environment: what this project and its libraries know.
# A container's libraries and programs are found by its PATHs, which its sshd does not hand on.
_TRAVELS = re.compile(
    r"^(AMP_XLA_|TF_|NCCL_|HOROVOD_|CUDA_VISIBLE_DEVICES|XLA_FLAGS|PYTHONPATH|(LD_LIBRARY_)?PATH$)"
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a recipe on several ranks. After `--`: the recipe's flags."""

    np: str = "auto"
    """how many ranks; auto = as many as this machine has GPUs"""
    hosts: Optional[str] = None
    """machines and how many ranks each, e.g. a:8,b:8, reached by ssh; none = this one; slurm = srun
    started this process as one of its tasks, and it becomes one rank"""
    recipe: str = "classification"
    """name of a recipe, or the path of a recipe's file"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command; returns the exit code of the rank that ended first with an error, else 0."""
    own, words = split_words(argv)
    config = parse(Config, own, "amp-xla ranks RECIPE")
    by_slurm = config.hosts == "slurm"
    count = sum(slurm.read(os.environ).slots) if by_slurm else _count(config.np, config.hosts)
    command = [sys.executable, "-m", "amp_xla", "train", "--recipe", config.recipe, "--", *words]
    if count == 1 and (config.hosts is None or by_slurm):
        os.execv(sys.executable, command)
    _need_horovod(count)
    if by_slurm:
        os.execve(sys.executable, command, {**os.environ, **slurm.join(os.environ, _reached_by)})
    return Started(command, count, config.hosts).wait()


def _count(asked: str, hosts: Optional[str]) -> int:
    """Ranks to start.

    Raises:
      AmpXlaError: it is no number; or there is no GPU to count; or the hosts have other numbers.
    """
    if hosts is not None:
        parts = [part.partition(":") for part in hosts.split(",")]
        if not all(host and slots.isdigit() and int(slots) for host, _, slots in parts):
            raise AmpXlaError(
                f"hosts is {hosts!r}; it is written a:8,b:8 - names and ranks on each"
            )
        total = sum(int(slots) for _, _, slots in parts)
        if asked not in ("auto", str(total)):
            raise AmpXlaError(f"{asked} ranks, but the hosts {hosts} have {total}; say the same")
        return total
    if asked == "auto":
        found = len(nvidia.look(os.environ).gpus)
        if not found:
            raise AmpXlaError(
                "as many ranks as GPUs were asked for, and the driver lists none; say how many: 2"
            )
        return found
    if not asked.isdigit() or not int(asked):
        raise AmpXlaError(f"{asked!r} ranks; allowed: auto, or a whole number from 1 on")
    return int(asked)


def _need_horovod(count: int) -> None:
    """Builds Horovod into an environment of this checkout that has none.

    Raises:
      AmpXlaError: it cannot be built, or this Python is somebody else's.
    """
    if importlib.util.find_spec("horovod") is not None:
        return
    runtime = Path(sys.prefix).name
    if not in_checkout() or Path(sys.prefix).parent != ROOT / ".venvs":
        raise AmpXlaError(
            f"{count} ranks need Horovod, and {sys.executable} has none; NVIDIA's containers bring "
            f"it, and docs/ranks.md says how to build it"
        )
    done = subprocess.run([str(ROOT / "scripts" / "build_horovod.sh"), runtime], stdout=2)
    if done.returncode:
        raise AmpXlaError("Horovod could not be built; the reason is above")
    importlib.invalidate_caches()


class Rank:
    """One process.

    Attributes:
      code: what it returned, as a shell counts; None while it runs.
      said: its last lines, where it is not the one that speaks.
    """

    def __init__(self, number: int, host: str, words: List[str], speaks: bool) -> None:
        self.number, self.host = number, host
        self.said: List[str] = []
        self.ended = 0.0
        pipe = None if speaks else subprocess.PIPE
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe and subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C is ours to pass on
        )
        if self._process.stdout is not None:
            threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, stream: Any) -> None:
        for line in stream:
            self.said.append(line.decode(errors="replace").rstrip())
            del self.said[:-_KEPT_LINES]

    @property
    def code(self) -> Optional[int]:
        code = self._process.poll()
        if code is not None and not self.ended:
            self.ended = time.monotonic()
        return 128 - code if code is not None and code < 0 else code

    def send(self, number: int) -> None:
        """Sends a signal to the process and to what it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def why(self) -> str:
        """What it ended of, in words."""
        errors = [line for line in self.said if line.startswith("error: ")]
        if errors:
            return errors[-1][len("error: ") :]
        code = self.code or 0
        if code > 128:
            return f"was killed by {_signal(code - 128)}"
        last = next((line for line in reversed(self.said) if line.strip()), "")
        return f"ended with exit code {code}" + (f": {last[:300]}" if last else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Started:
    """All ranks of a run.

    Args:
      command: what every rank runs.
      count: of ranks.
      hosts: as Horovod writes them; None = this host.
    """

    def __init__(self, command: List[str], count: int, hosts: Optional[str]) -> None:
        from horovod.runner import gloo_run
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        plan = get_host_assignments(parse_hosts(hosts or f"localhost:{count}"), count)
        far = sorted({slot.hostname for slot in plan if not _here(slot.hostname)})
        address, interface = _reached_by(far[0]) if far else ("127.0.0.1", "lo")
        server = RendezvousServer(False)
        port = server.start()
        server.init(plan)
        shared = gloo_run.create_run_env_vars(
            address, [os.environ.get("HOROVOD_GLOO_IFACE", interface)], port
        )
        self._got: Optional[int] = None
        self._before = {number: signal.signal(number, self._pass_on) for number in _SIGNALS}
        self.ranks: List[Rank] = []
        for slot in plan:
            variables = {**shared, **gloo_run.create_slot_env_vars(slot)}
            if not far:
                variables["HOROVOD_HOSTNAME"] = socket.gethostname()
            words = _words(command, {k: str(v) for k, v in variables.items()}, slot.hostname)
            name = variables["HOROVOD_HOSTNAME"]
            self.ranks.append(Rank(slot.rank, name, words, speaks=slot.rank == 0))

    def _pass_on(self, number: int, frame: Any) -> None:
        """The ranks agree among themselves on the step to stop after, so one that knows is enough.

        The second signal is for all: it insists.
        """
        for rank in self.ranks[: 1 if self._got is None else None]:
            rank.send(number)
        self._got = number

    def wait(self) -> int:
        """Until all have ended; the exit code of the first that failed."""
        first: Optional[Rank] = None
        try:
            while any(rank.code is None for rank in self.ranks):
                failed = [r for r in self.ranks if r.code]
                if failed and first is None:
                    first = min(failed, key=lambda r: r.ended)
                if first is not None and time.monotonic() - first.ended > _GRACE_SECONDS:
                    break
                time.sleep(0.1)
        finally:
            silent = [rank for rank in self.ranks if rank.code is None]
            for rank in silent:
                rank.send(signal.SIGKILL)
            for number, handler in self._before.items():
                signal.signal(number, handler)
        return self._verdict(silent)

    def _verdict(self, silent: List[Rank]) -> int:
        failed = sorted(
            (r for r in self.ranks if r.code and r not in silent), key=lambda r: r.ended
        )
        if self._got is not None and not silent and len({r.code for r in self.ranks}) == 1:
            return self.ranks[0].code or 0  # an orderly stop; the first rank has said it
        guilty = [r for r in failed if r.code != _LOST]
        time.sleep(0.2)  # its last lines are on their way
        if guilty:
            # What all refuse alike the first rank, the one that speaks, has said.
            rank = min(guilty, key=lambda r: (r.code != guilty[0].code, r.number))
            if rank.number or (rank.code or 0) > 128:
                _say(rank, rank.why())
            return rank.code or 0
        if silent:
            names = " and ".join(f"rank {r.number} on {r.host}" for r in silent)
            _say(None, f"{names} did not answer, and was killed; --resume goes on")
            return _LOST
        return failed[0].code or 0 if failed else 0


def _say(rank: Optional[Rank], why: str) -> None:
    who = "" if rank is None or why.startswith("rank ") else f"rank {rank.number} on {rank.host} "
    print(f"error: {who}{why}", file=sys.stderr, flush=True)


def _here(host: str) -> bool:
    from horovod.runner.util import network

    return network.resolve_host_address(host) in network.get_local_host_addresses()


def _reached_by(host: str) -> Tuple[str, str]:
    """(address, interface) of this machine on its way to another."""
    import psutil

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
    except OSError as error:
        raise AmpXlaError(f"host {host} cannot be reached: {error.strerror or error}") from error
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return address, name
    raise AmpXlaError(f"no network interface has {address}; name one: HOROVOD_GLOO_IFACE=eth0")


def _words(command: List[str], variables: Dict[str, str], host: str) -> List[str]:
    """The words that start a rank, here or by ssh."""
    if _here(host):
        return ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    known = {name: value for name, value in os.environ.items() if _TRAVELS.match(name)}
    there = [
        "env",
        *(f"{name}={value}" for name, value in {**known, **variables}.items()),
        *command,
    ]
    line = f"cd {shlex.quote(os.getcwd())} && exec {' '.join(map(shlex.quote, there))}"
    return ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", host, line]
