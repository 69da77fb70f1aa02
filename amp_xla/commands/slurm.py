"""A task that ``srun`` started becomes a rank: no ssh, no MPI, no process above the ranks.

Slurm tells each task who the others are. What Horovod wants beside that is a place where the ranks
leave each other their addresses: the first rank starts it, as a process that ends when it does.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Mapping, NamedTuple

from amp_xla.errors import AmpXlaError

# A container's import on another node takes its time.
_PATIENCE_SECONDS = 300.0
# Below those that Linux hands out by itself (32768 and up).
_PORTS = range(16384, 32768)


class Task(NamedTuple):
    """nodes: the step's, in Slurm's order; slots: tasks on each; node, local: this one's place."""

    nodes: List[str]
    slots: List[int]
    node: int
    local: int
    port: int

    @property
    def plan(self) -> str:
        """As Horovod writes hosts: ``a:2,b:2``."""
        return ",".join(f"{node}:{slots}" for node, slots in zip(self.nodes, self.slots))


def read(environ: Mapping[str, str]) -> Task:
    """What Slurm left to read.

    Raises:
      AmpXlaError: no ``srun`` started this process.
    """
    try:
        nodes = expand(environ["SLURM_STEP_NODELIST"])
        slots = counts(environ["SLURM_STEP_TASKS_PER_NODE"])
        node, local = int(environ["SLURM_NODEID"]), int(environ["SLURM_LOCALID"])
        job, step = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"])
    except (KeyError, ValueError) as error:
        raise AmpXlaError(
            f"the ranks are Slurm's, but no srun started this process ({error}); next: sbatch "
            f"scripts/slurm/train.sbatch"
        ) from None
    # The same on every node, without asking anybody; two steps of a job have two.
    port = int(
        environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT") or _PORTS[(job * 31 + step) % len(_PORTS)]
    )
    return Task(nodes, slots, node, local, port)


def expand(names: str) -> List[str]:
    """``a[01-03,7],b`` -> a01, a02, a03, a7, b."""
    found: List[str] = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        heads = [""]
        for text, inside in re.findall(r"([^\[]+)|\[([^\]]*)\]", word):
            tails = [text] if text else _numbers(inside)
            heads = [head + tail for head in heads for tail in tails]
        found += heads
    return found


def _numbers(ranges: str) -> List[str]:
    found: List[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        found += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return found


def counts(tasks: str) -> List[int]:
    """``2(x3),1`` -> 2, 2, 2, 1."""
    found: List[int] = []
    for part in tasks.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        found += [int(count)] * int(times or 1)
    return found


def variables(task: Task, address: str, interface: str) -> Dict[str, str]:
    """What Horovod reads from this rank's environment."""
    from horovod.runner import gloo_run
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    plan = get_host_assignments(parse_hosts(task.plan), sum(task.slots))
    name = task.nodes[task.node]
    (slot,) = [s for s in plan if (s.hostname, s.local_rank) == (name, task.local)]
    shared = gloo_run.create_run_env_vars(address, [interface], task.port)
    return {k: str(v) for k, v in {**shared, **gloo_run.create_slot_env_vars(slot)}.items()}


def join(environ: Mapping[str, str], own: Any) -> Dict[str, str]:
    """Starts the meeting place or finds it; returns the variables of this rank.

    Args:
      own: host -> (address, interface) of this machine on its way there.

    Raises:
      AmpXlaError: the place cannot be opened, or does not open.
    """
    task = read(environ)
    if len(task.nodes) == 1:
        address, interface = "127.0.0.1", "lo"
    else:
        address, interface = own(task.nodes[0 if task.node else 1])
    if task.node:
        address = socket.gethostbyname(task.nodes[0])
    interface = environ.get("HOROVOD_GLOO_IFACE", interface)
    if task.node == task.local == 0:
        _open(task)
    else:
        _wait_for(address, task.port, task.nodes[0])
    return variables(task, address, interface)


def _open(task: Task) -> None:
    """Starts ``serve`` in a process that looks after this one, which will be the first rank."""
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, task.plan, str(task.port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Slurm waits for all who hold the task's
        start_new_session=True,
    )
    assert server.stdout is not None
    with server.stdout as stdout:
        opened = select.select([stdout], [], [], _PATIENCE_SECONDS)[0] and stdout.read(1)
    if not opened:
        server.kill()
        server.wait()
        raise AmpXlaError(
            f"port {task.port} of {task.nodes[0]}, at which the ranks would meet, is taken; name "
            f"another: HOROVOD_GLOO_RENDEZVOUS_PORT=29400"
        )


def _wait_for(address: str, port: int, name: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection((address, port), 5).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise AmpXlaError(
                    f"the first rank does not answer on {name}, port {port}, after "
                    f"{_PATIENCE_SECONDS:.0f} s ({error.strerror or error}); it failed, or "
                    f"a firewall is between"
                ) from error
        time.sleep(0.2)


def serve(plan: str, port: int) -> None:
    """The meeting place, until the process that started it has ended.

    Raises:
      OSError: the port is taken.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # they are for the ranks, which need it to end
    parent = os.getppid()
    server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    hosts = parse_hosts(plan)
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"+")
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
