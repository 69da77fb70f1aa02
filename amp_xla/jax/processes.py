"""JAX's processes, values exchanged among them, and arrays over all devices.

Each process builds each whole batch, which is a function of (seed, epoch), and puts the rows of its
devices there; JAX adds up the results. So several processes compute the same as one.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Callable, Dict, List

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from amp_xla.errors import AmpXlaError
from amp_xla.process.world import world


@functools.lru_cache(maxsize=None)
def join() -> None:
    """Meet the other processes, if there are any.

    Each is started with ``JAX_COORDINATOR_ADDRESS`` (host:port of the first), ``JAX_NUM_PROCESSES``
    and ``JAX_PROCESS_ID``.

    Raises:
      AmpXlaError: a process did not answer.
    """
    if world().size == 1:
        return
    try:
        jax.distributed.initialize(
            num_processes=world().size, process_id=world().rank, initialization_timeout=120
        )
    except (RuntimeError, ValueError) as error:
        raise AmpXlaError(f"{world().name} did not connect to the others: {error}") from error


class Ranks:
    """JAX's processes, with the interface of ``amp_xla.training.distributed.Ranks``.

    Each process builds whole batches, so the number of processes changes no sample.
    """

    def __init__(self) -> None:
        self.world, self.first_size = world(), 1
        self.first, self.several = jax.process_index() == 0, jax.process_count() > 1

    def gather(self, value: Any) -> List[Any]:
        """Return the JSON-able values of all processes, in order; all must call it."""
        if not self.several:
            return [value]
        data = json.dumps(value).encode()
        longest = int(np.max(multihost_utils.process_allgather(np.array([len(data)]))))
        padded = np.zeros(longest, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        every = np.asarray(multihost_utils.process_allgather(padded))
        return [json.loads(bytes(row).rstrip(b"\0").decode()) for row in every]

    def from_first(self, compute: Callable[[], Any]) -> Any:
        """Return the result of ``compute``, which runs in the first process only."""
        return self.gather(compute() if self.first else None)[0]


@functools.lru_cache(maxsize=None)
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("rows",))


def everywhere() -> NamedSharding:
    """Return the sharding of an array that is replicated on all devices."""
    return NamedSharding(_mesh(), PartitionSpec())


def by_rows() -> NamedSharding:
    """Return the sharding of an array whose first axis is split over devices."""
    return NamedSharding(_mesh(), PartitionSpec("rows"))


def check_rows(rows: int) -> None:
    """Raise AmpXlaError unless devices can share the rows of a batch evenly."""
    devices = jax.device_count()
    if rows % devices:
        raise AmpXlaError(
            f"--batch-size {rows} cannot be shared by {devices} devices; allowed is a multiple of "
            f"{devices}"
        )


def put(tree: Any) -> Any:
    """Replicate arrays, which are equal in all processes, on all devices."""
    return jax.tree_util.tree_map(lambda array: _placed(array, everywhere()), tree)


def share(arrays: Dict[str, np.ndarray]) -> Dict[str, jax.Array]:
    """Return the arrays of a whole batch with their rows split over devices."""
    return {name: _placed(array, by_rows()) for name, array in arrays.items()}


def _placed(array: Any, sharding: NamedSharding) -> jax.Array:
    if jax.process_count() == 1:
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
