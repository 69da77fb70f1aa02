"""Rank and world size from the launcher's environment variables; the ranks' rendezvous server."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import signal
import socket
import threading
import time
from typing import NamedTuple, Optional

from amp_xla.errors import AmpXlaError, RankLost

# jax.distributed, horovodrun, Open MPI's mpirun, and PMI (MPICH, `srun --mpi=pmi2`). Slurm's own
# variables are set in every shell of an allocation and do not count.
_VARIABLES = (
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)

ENDS_WITH_STDIN = "RANK_ENDS_WITH_STDIN"  # set by launchers that keep a rank's standard input open
_START_SECONDS = 300.0  # how long ranks wait for the last one to start
# Set where another job's ranks may use the same port: job and step, a part of the path in ``meet``.
MEETING = "RANK_MEETING"
TRAINING = "amp_xla_training"  # path of ranks that train


class World(NamedTuple):
    """Rank of this process (counted from 0), number of ranks, and name of this host."""

    rank: int = 0
    size: int = 1
    host: str = ""

    @property
    def name(self) -> str:
        """Name for messages, e.g. ``rank 1 on node7``."""
        return f"rank {self.rank} on {self.host}"


@functools.lru_cache(maxsize=None)
def world() -> World:
    """Read rank and world size from environment variables; without a launcher the size is 1."""
    environ = os.environ
    host = environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    for rank, size in _VARIABLES:
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            return World(int(environ[rank]), int(environ[size]), host)
    return World(host=host)


def stop_with_launcher() -> None:
    """Send this process SIGTERM if standard input closes, because its launcher has ended."""
    if not os.environ.get(ENDS_WITH_STDIN):
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="launcher").start()


def meet(place: World) -> None:
    """Wait until all ranks have started, because ``hvd.init`` aborts if one is 30 seconds late.

    A host may import TensorFlow from a slow disk. The ranks meet at Horovod's rendezvous server.
    mpirun has no such server, and waits for all ranks itself.

    Raises:
      AmpXlaError: a rank has not started in time, or (``RankLost``) the server has ended.
    """
    if not _address():
        return
    path, end = f"amp_xla_started{os.environ.get(MEETING, '')}", time.monotonic() + _START_SECONDS
    try:
        _status("PUT", path, place.rank, b"yes")
        for rank in range(place.size):
            while _status("GET", path, rank) != http.client.OK:
                if time.monotonic() > end:
                    raise AmpXlaError(f"rank {rank} has not started in {_START_SECONDS:.0f} s")
                time.sleep(0.5)
    except (OSError, http.client.HTTPException) as error:
        raise RankLost(f"the rendezvous server has ended: {error}") from error


def announce(place: World) -> None:
    """Tell the launcher that this rank trains. Once all do, it forwards a signal only to rank 0."""
    if place.size > 1 and _address():
        with contextlib.suppress(OSError, http.client.HTTPException):  # the launcher was killed
            _status("PUT", TRAINING, place.rank, b"yes")


def _address() -> str:
    return os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")


def _status(method: str, path: str, rank: int, body: Optional[bytes] = None) -> int:
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    connection = http.client.HTTPConnection(_address(), port, timeout=_START_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, f"/{path}/{rank}", body)
        return connection.getresponse().status
