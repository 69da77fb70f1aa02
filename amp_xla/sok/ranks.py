"""The processes that share tables: Horovod's ranks, or one process."""

from __future__ import annotations

import importlib
from typing import Any, Optional, Tuple

from amp_xla import backend
from amp_xla.errors import AmpXlaError
from amp_xla.precision.agreement import joined
from amp_xla.process.world import meet, world


def Init(global_batch_size: Optional[int] = None, **_: Any) -> Any:  # SparseOperationKit's name
    """Join the ranks that a launcher started. Call it before a layer is created.

    Args:
      global_batch_size: samples per step, over all ranks; a multiple of the number of ranks.
      **_: SparseOperationKit's other arguments (visible devices), which are ignored.

    Returns:
      The number of ranks. In graph mode it is a tensor, because scripts for TensorFlow 1.15 run
      the result in a session.

    Raises:
      AmpXlaError: the ranks do not divide the batch, or Horovod is missing.
    """
    if world().size > 1:
        try:
            hvd = importlib.import_module("horovod.tensorflow")
        except ImportError as error:
            raise AmpXlaError(
                f"{world().size} ranks were started, but Horovod cannot be imported ({error})"
            ) from error
        # The GPU may have been chosen already, by a recipe or a script that initialized Horovod.
        chosen = hvd.is_initialized() and len(backend.gpus()) == 1
        if not hvd.is_initialized():
            meet(world())
            hvd.init()
        if backend.gpus() and not chosen:
            backend.use_gpu(hvd.local_rank())
    size = place()[1]
    if global_batch_size is not None and (global_batch_size < 1 or global_batch_size % size):
        raise AmpXlaError(
            f"global_batch_size is {global_batch_size}; allowed: a multiple of the {size} ranks"
        )
    tf: Any = backend.tensorflow()
    return size if tf.executing_eagerly() else tf.constant(size)


def place() -> Tuple[int, int]:
    """Return the global rank and the number of ranks.

    Raises:
      AmpXlaError: several ranks were started, and ``Init`` was not called.
    """
    module = joined()
    if module is None and world().size > 1:
        raise AmpXlaError(
            f"{world().size} ranks were started: call sok.Init before creating a layer"
        )
    return (0, 1) if module is None else (module.rank(), module.size())
