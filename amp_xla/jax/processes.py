"""JAX's processes: who is there, one value told to all, arrays over all devices.

Every process makes every whole batch, which is a function of (seed, epoch), and puts its devices'
rows of it there; JAX adds up what the devices find. So several processes do what one would.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Dict, List

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from amp_xla.errors import AmpXlaError
from amp_xla.process.world import world


@functools.lru_cache(maxsize=None)
def join() -> None:
    """Meets the other processes, where there are any.

    Each is started with ``JAX_COORDINATOR_ADDRESS`` (host:port of the first), ``JAX_NUM_PROCESSES``
    and ``JAX_PROCESS_ID``.

    Raises:
      AmpXlaError: they did not come.
    """
    if world().size == 1:
        return
    try:
        jax.distributed.initialize(
            num_processes=world().size, process_id=world().rank, initialization_timeout=120
        )
    except (RuntimeError, ValueError) as error:
        raise AmpXlaError(f"{world().name} did not meet the others: {error}") from error


def first() -> bool:
    """True for the process that writes and speaks."""
    return jax.process_index() == 0


def gather(value: Any) -> List[Any]:
    """JSON-able ``value`` of every process, in their order; all must call it."""
    if jax.process_count() == 1:
        return [value]
    data = json.dumps(value).encode()
    longest = int(np.max(multihost_utils.process_allgather(np.array([len(data)]))))
    padded = np.zeros(longest, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    every = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row).rstrip(b"\0").decode()) for row in every]


@functools.lru_cache(maxsize=None)
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("rows",))


def everywhere() -> NamedSharding:
    """Of an array that every device has whole."""
    return NamedSharding(_mesh(), PartitionSpec())


def by_rows() -> NamedSharding:
    """Of an array whose first axis is shared out."""
    return NamedSharding(_mesh(), PartitionSpec("rows"))


def check_rows(rows: int) -> None:
    """Refuses batches whose rows the devices cannot share evenly."""
    devices = jax.device_count()
    if rows % devices:
        raise AmpXlaError(
            f"--batch-size {rows} cannot be shared by {devices} devices; allowed is a multiple of "
            f"{devices}"
        )


def put(tree: Any) -> Any:
    """NumPy arrays, the same in every process -> whole on every device."""
    return jax.tree_util.tree_map(lambda array: _placed(array, everywhere()), tree)


def share(arrays: Dict[str, np.ndarray]) -> Dict[str, jax.Array]:
    """A whole batch's arrays -> their rows on the devices."""
    return {name: _placed(array, by_rows()) for name, array in arrays.items()}


def _placed(array: Any, sharding: NamedSharding) -> jax.Array:
    if jax.process_count() == 1:
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
