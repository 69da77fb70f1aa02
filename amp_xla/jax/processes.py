"""JAX's processes: exchange of values, and arrays spread over the devices of all processes.

Batches are a function of (seed, epoch). Each process builds all rows of a batch, and copies a share
of the rows to its devices. JAX sums over all devices, so the result equals that of one process.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from amp_xla.errors import AmpXlaError
from amp_xla.process.world import world
from amp_xla.training import distributed


class Ranks(distributed.Ranks):
    """JAX's processes, which exchange values through JAX. Each builds all rows of a batch."""

    def exchange(self, mine: bytes) -> List[bytes]:
        """Return each process's JSON text ``mine``, in rank order; all processes must call it."""
        longest = int(np.max(multihost_utils.process_allgather(np.array([len(mine)]))))
        padded = np.frombuffer(mine.ljust(longest), np.uint8)
        return [bytes(row) for row in np.asarray(multihost_utils.process_allgather(padded))]


@functools.lru_cache(maxsize=None)
def join() -> Ranks:
    """Connect to the other processes, if there are any; further calls only return the ``Ranks``.

    Each process is started with ``JAX_COORDINATOR_ADDRESS`` (host:port of the first process),
    ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.

    Raises:
      AmpXlaError: a process does not answer.
    """
    if world().size > 1:
        try:
            jax.distributed.initialize(
                num_processes=world().size, process_id=world().rank, initialization_timeout=120
            )
        except (RuntimeError, ValueError) as error:
            raise AmpXlaError(f"{world().name} cannot connect to other ranks: {error}") from error
    return Ranks(world())


@functools.lru_cache(maxsize=None)
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("rows",))


def everywhere() -> NamedSharding:
    """Return the sharding of an array that is replicated on all devices."""
    return NamedSharding(_mesh(), PartitionSpec())


def check_rows(rows: int) -> None:
    """Raise AmpXlaError unless devices can share the rows of a batch evenly."""
    devices = jax.device_count()
    if rows % devices:
        raise AmpXlaError(
            f"--batch-size {rows} cannot be shared by {devices} devices; allowed is a multiple of "
            f"{devices}"
        )


def put(tree: Any) -> Any:
    """Replicate arrays on all devices; they must be equal in all processes."""
    return jax.tree_util.tree_map(lambda array: _placed(array, everywhere()), tree)


def share(arrays: Dict[str, np.ndarray]) -> Dict[str, jax.Array]:
    """Return the arrays of a whole batch with their rows split over devices."""
    by_rows = NamedSharding(_mesh(), PartitionSpec("rows"))
    return {name: _placed(array, by_rows) for name, array in arrays.items()}


def _placed(array: Any, sharding: NamedSharding) -> jax.Array:
    if jax.process_count() == 1:
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
