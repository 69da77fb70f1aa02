"""Tasks of Slurm as ranks, and Horovod's rendezvous server.

Each task of ``srun`` becomes a rank, without ssh, MPI or a launcher. Horovod needs a server through
which the ranks exchange addresses; the first task starts it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from amp_xla.errors import AmpXlaError
from amp_xla.process.stopping import EXIT_CODES
from amp_xla.process.world import MEETING

# How long ranks wait for each other: a node may take minutes to unpack the container.
_PATIENCE_SECONDS = 300.0
# Linux gives ports from 32768 on to other programs.
_PORTS = range(16384, 32768)
_PORT, _INTERFACE = "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_GLOO_IFACE"  # set by the user


class Task(NamedTuple):
    """A task of a Slurm step: number ``local`` on the node with index ``node``.

    ``slots``: number of tasks of each node in ``nodes``. ``port``: port of the rendezvous server.
    """

    nodes: List[str]
    slots: List[int]
    node: int
    local: int
    port: int

    @property
    def plan(self) -> str:
        """The nodes and their numbers of tasks as Horovod writes them: ``a:2,b:2``."""
        return ",".join(f"{node}:{slots}" for node, slots in zip(self.nodes, self.slots))

    @property
    def slot(self) -> Any:
        """Horovod's slot of this task."""
        place = self.nodes[self.node], self.local
        return next(s for s in assign(self.plan) if (s.hostname, s.local_rank) == place)


def read(environ: Mapping[str, str]) -> Task:
    """Read the task from the environment variables of ``srun``.

    Raises:
      AmpXlaError: ``srun`` did not start this process, or the variable for the port is wrong.
    """
    try:
        nodes = expand(environ["SLURM_STEP_NODELIST"])
        slots = counts(environ["SLURM_STEP_TASKS_PER_NODE"])
        node, local = int(environ["SLURM_NODEID"]), int(environ["SLURM_LOCALID"])
        job, step = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"])
    except (KeyError, ValueError) as error:
        raise AmpXlaError(
            f"--slurm is given, but srun did not start this process ({error}); use sbatch "
            f"scripts/slurm/train.sbatch"
        ) from None
    # Each node computes the same port, and each step of a job another one.
    port = environ.get(_PORT, "").strip() or str(_PORTS[(job * 31 + step) % len(_PORTS)])
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise AmpXlaError(f"{_PORT}={port}; allowed: a whole number from 1 to 65535")
    return Task(nodes, slots, node, local, int(port))


def expand(names: str) -> List[str]:
    """Expand a node list of Slurm: ``a[01-03,7],b`` gives a01, a02, a03, a7, b."""
    nodes: List[str] = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        heads = [""]
        for text, inside in re.findall(r"([^\[]+)|\[([^\]]*)\]", word):
            tails = [text] if text else _numbers(inside)
            heads = [head + tail for head in heads for tail in tails]
        nodes += heads
    return nodes


def _numbers(ranges: str) -> List[str]:
    numbers: List[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return numbers


def counts(tasks: str) -> List[int]:
    """Expand a list of task counts of Slurm: ``2(x3),1`` gives 2, 2, 2, 1."""
    slots: List[int] = []
    for part in tasks.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        slots += [int(count)] * int(times or 1)
    return slots


def assign(hosts: str) -> List[Any]:
    """Return Horovod's slots, one per rank; ``hosts`` is written as in ``a:2,b:2``."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    parsed = parse_hosts(hosts)
    slots: List[Any] = get_host_assignments(parsed, sum(host.slots for host in parsed))
    return slots


def rendezvous(address: str, port: int, plan: List[Any]) -> Any:
    """Return the server through which the ranks exchange addresses.

    ``plan`` is what ``assign`` returns; ``port`` 0 = any free port. The server is listening, but
    handles requests only in calls of its ``serve_forever`` or ``handle_request``.
    """
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
    server.init(plan)
    return server


def route_to(host: str) -> Tuple[str, str]:
    """Return the address and the network interface from which this machine reaches ``host``."""
    import psutil

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
    except OSError as error:
        raise AmpXlaError(f"host {host} cannot be reached: {error.strerror or error}") from error
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return address, name
    if os.environ.get(_INTERFACE):
        return address, os.environ[_INTERFACE]
    raise AmpXlaError(
        f"no network interface has the address {address}; set the variable {_INTERFACE} to "
        f"the name of the interface, such as eth0"
    )


def variables(slot: Any, address: str, interface: str, port: int) -> Dict[str, str]:
    """Return Horovod's environment variables for a rank; ``slot`` is one that ``assign`` returns.

    ``address`` and ``port`` are the rendezvous server's. HOROVOD_GLOO_IFACE, if it is set, is used
    instead of ``interface``.
    """
    from horovod.runner import gloo_run

    interface = os.environ.get(_INTERFACE) or interface
    shared = gloo_run.create_run_env_vars(address, [interface], port)
    return {k: str(v) for k, v in {**shared, **gloo_run.create_slot_env_vars(slot)}.items()}


def join(environ: Mapping[str, str]) -> Dict[str, str]:
    """Start the rendezvous server or wait for it; return this rank's environment variables."""
    task = read(environ)
    address, interface = "127.0.0.1", "lo"
    if len(task.nodes) > 1:
        address, interface = route_to(task.nodes[0 if task.node else 1])
        with contextlib.suppress(OSError):  # the first node may not know its own name
            named = socket.gethostbyname(task.nodes[0])
            if task.node or not named.startswith("127."):
                address = named  # all nodes use the same address of the first one
    if task.node == task.local == 0:
        _serve(task, address)
    else:
        _wait_for(address, task.port, task.nodes[0])
    # Another job may have opened the same port of the node before.
    number = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    return {**variables(task.slot, address, interface, task.port), MEETING: number}


def _serve(task: Task, address: str) -> None:
    """Run the rendezvous server in a child process until this process, rank 0, has ended."""
    parent = os.getpid()
    try:
        server = rendezvous(address, task.port, assign(task.plan))
    except OSError as error:
        raise AmpXlaError(
            f"port {task.port} of {task.nodes[0]}, where the ranks meet: {error.strerror}; choose "
            f"another: {_PORT}=29400"
        ) from error
    if os.fork():
        return
    try:
        for name in EXIT_CODES:  # the ranks need the server while they stop
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # Slurm waits until a task's streams are closed
            os.dup2(nowhere, stream)
        server.timeout = 0.5
        while os.getppid() == parent:
            server.handle_request()
    finally:
        os._exit(0)


def _wait_for(address: str, port: int, name: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection((address, port), 5).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise AmpXlaError(
                    f"rank 0 on {name}, port {port}, did not respond for {_PATIENCE_SECONDS:.0f} s "
                    f"({error.strerror or error}); it failed, or a firewall blocks the port"
                ) from error
        time.sleep(0.2)
