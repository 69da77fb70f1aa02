"""Which of the processes that train together this one is, from what its launcher left to read."""

from __future__ import annotations

import functools
import os
import socket
from typing import Mapping, NamedTuple

# jax.distributed's own, horovodrun, Open MPI's mpirun, and launchers that speak PMI (MPICH,
# `srun --mpi=pmi2`). Slurm's own variables alone say nothing: they stand in every shell of an
# allocation.
_VARIABLES = (
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_LOCAL_PROCESS_ID"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "SLURM_LOCALID"),
)


class World(NamedTuple):
    """rank: of size, from 0; local_rank: among those on this host; host: its name."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    host: str = ""

    @property
    def name(self) -> str:
        """E.g. ``rank 1 on node7``."""
        return f"rank {self.rank} on {self.host}"


def read(environ: Mapping[str, str]) -> World:
    """The world that a launcher put this process in; without one it is alone."""
    for rank, size, local in _VARIABLES:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            where = environ.get(local, "0")
            return World(
                int(environ[rank]),
                int(environ[size]),
                int(where) if where.isdigit() else 0,
                environ.get("HOROVOD_HOSTNAME") or socket.gethostname(),
            )
    return World(host=socket.gethostname())


@functools.lru_cache(maxsize=None)
def world() -> World:
    """This process' own."""
    return read(os.environ)


def speaks() -> bool:
    """True for the one process that tells the user how it goes."""
    return world().rank == 0
