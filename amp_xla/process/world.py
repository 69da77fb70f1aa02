"""Rank and world size from the launcher's environment variables."""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
from typing import NamedTuple

# jax.distributed, horovodrun, Open MPI's mpirun, and PMI (MPICH, `srun --mpi=pmi2`). Slurm's own
# variables are set in every shell of an allocation and do not count.
_VARIABLES = (
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)

ENDS_WITH_STDIN = "RANK_ENDS_WITH_STDIN"  # set by launchers that keep a rank's standard input open


class World(NamedTuple):
    """Rank of this process, counted from 0, number of ranks, and host name."""

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
    """Send this process SIGTERM when its launcher ends, which closes standard input."""
    if not os.environ.get(ENDS_WITH_STDIN):
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="launcher").start()


def is_main_rank() -> bool:
    """Return True on the one rank that prints and writes."""
    return world().rank == 0
