"""The processes that share tables: Horovod's ranks, or one process."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Optional, Tuple

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.process.world import world

_state: Dict[str, Any] = {"hvd": None}


def Init(global_batch_size: Optional[int] = None, **_: Any) -> Any:  # its name there
    """Join the ranks that a launcher started; call it before any layer is made.

    Args:
      global_batch_size: samples per step of all ranks together; a multiple of the ranks.
      **_: SparseOperationKit's other arguments (visible devices), which Horovod finds itself.

    Returns:
      The number of ranks; in a graph a tensor, which a session may run like SparseOperationKit's
      operation on TensorFlow 1.15.

    Raises:
      AmpXlaError: the batch cannot be shared evenly, or Horovod is missing.
    """
    if world().size > 1 and _state["hvd"] is None:
        try:
            hvd = importlib.import_module("horovod.tensorflow")
        except ImportError as error:
            raise AmpXlaError(
                f"{world().size} ranks were started, and Horovod cannot be imported ({error})"
            ) from error
        # A recipe, or a script that initialized Horovod, may have chosen this rank's GPU.
        chosen = hvd.is_initialized() and len(backend.gpus()) == 1
        hvd.init()
        if backend.gpus() and not chosen:
            backend.use_gpu(hvd.local_rank())
        _state["hvd"] = hvd
    size = place()[1]
    if global_batch_size is not None and (global_batch_size < 1 or global_batch_size % size):
        raise AmpXlaError(
            f"global_batch_size is {global_batch_size}; allowed is a multiple of the {size} ranks"
        )
    tf: Any = backend.tensorflow()
    return size if tf.executing_eagerly() else tf.constant(size)


def hvd() -> Optional[Any]:
    """Return ``horovod.tensorflow``, initialized; None with one process."""
    return _state["hvd"]


def place() -> Tuple[int, int]:
    """Return the global rank and the number of ranks.

    Raises:
      AmpXlaError: several ranks were started, and ``Init`` was not called.
    """
    module = hvd()
    if module is None and world().size > 1:
        raise AmpXlaError(f"{world().size} ranks were started: call Init before making a layer")
    return (0, 1) if module is None else (module.rank(), module.size())
