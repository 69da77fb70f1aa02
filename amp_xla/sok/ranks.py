"""The processes that share tables: Horovod's, or this one alone."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Optional, Tuple

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.process.world import world

_state: Dict[str, Any] = {"hvd": None}


def Init(global_batch_size: Optional[int] = None, **_: Any) -> Any:  # its name there
    """Joins the ranks that a launcher started; the first call, before any layer is made.

    Args:
      global_batch_size: samples a step of all ranks together; every rank has the same number.
      **_: SparseOperationKit's other arguments (visible devices), which Horovod knows itself.

    Returns:
      The number of ranks; in a graph a tensor of it, which a session may run as the operation
      that it is in SparseOperationKit on TensorFlow 1.15. There is nothing left to do then.

    Raises:
      AmpXlaError: the batch cannot be shared evenly; or Horovod is missing.
    """
    if world().size > 1 and _state["hvd"] is None:
        try:
            hvd = importlib.import_module("horovod.tensorflow")
        except ImportError as error:
            raise AmpXlaError(
                f"{world().size} ranks were started, and Horovod cannot be imported ({error})"
            ) from error
        hvd.init()
        if backend.gpus():
            backend.use_gpu(hvd.local_rank())  # the device is local; rows go by global rank
        _state["hvd"] = hvd
    size = place()[1]
    if global_batch_size is not None and (global_batch_size < 1 or global_batch_size % size):
        raise AmpXlaError(
            f"global_batch_size is {global_batch_size}; allowed is a multiple of the {size} ranks"
        )
    tf: Any = backend.tensorflow()
    return size if tf.executing_eagerly() else tf.constant(size)


def hvd() -> Optional[Any]:
    """``horovod.tensorflow``, initialized; None where this process is alone."""
    return _state["hvd"]


def place() -> Tuple[int, int]:
    """(global rank, ranks)."""
    module = hvd()
    return (0, 1) if module is None else (module.rank(), module.size())


def require() -> None:
    """``AmpXlaError`` where several ranks were started and ``Init`` was not called."""
    if world().size > 1 and hvd() is None:
        raise AmpXlaError(f"{world().size} ranks were started: call Init before making a layer")
