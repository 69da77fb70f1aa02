"""How ranks come to one decision: ``agreement=`` and ``reduce=`` of ``LossScaleOptimizer``.

An agreement takes a boolean scalar tensor, whether this rank's gradients are finite, and returns
whether all ranks' are. It must run on every rank in every step. Its attribute ``total``, if it
has one, sums a float32 scalar over ranks; clipping by a global norm needs it where variables are
model-parallel.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from amp_xla.precision.tensorflow import tf

Agreement = Callable[[Any], Any]


def choose(agreement: Union[Agreement, str, None]) -> Optional[Agreement]:
    """``auto`` made concrete.

    Raises:
      ValueError: another string.
    """
    if not isinstance(agreement, str):
        return agreement
    if agreement != "auto":
        raise ValueError(f"agreement is {agreement!r}; allowed: 'auto', None or a function")
    hvd = sys.modules.get("horovod.tensorflow") or sys.modules.get("horovod.tensorflow.keras")
    if hvd is None or not hvd.is_initialized() or hvd.size() == 1:
        return None
    return horovod(sys.modules["horovod.tensorflow"])


def horovod(hvd: Optional[Any] = None) -> Agreement:
    """All ranks of Horovod.

    Args:
      hvd: ``horovod.tensorflow``, initialized; imported when None.
    """
    module = _horovod(hvd)

    def agree(finite: Any) -> Any:
        # A sum of integers: exact for any number of ranks, and every Horovod has it.
        bad = tf.cast(tf.logical_not(finite), tf.int32)
        return tf.equal(module.allreduce(bad, op=module.Sum), 0)

    # For the global norm of gradients of which some belong to one rank alone.
    agree.total = lambda x: module.allreduce(x, op=module.Sum)  # type: ignore[attr-defined]
    return agree


def horovod_mean(hvd: Optional[Any] = None) -> Callable[[Any], Any]:
    """The mean over Horovod's ranks, for ``reduce=``; sparse gradients are gathered, not summed."""
    module = _horovod(hvd)
    return lambda gradient: module.allreduce(gradient, op=module.Average)


def _horovod(hvd: Optional[Any]) -> Any:
    return importlib.import_module("horovod.tensorflow") if hvd is None else hvd


def replicas() -> Agreement:
    """All replicas of the current ``tf.distribute`` strategy.

    Not needed where gradients are summed over replicas before they are applied, since the sums
    then tell every replica; model-parallel gradients need it.
    """

    def agree(finite: Any) -> Any:
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return finite
        bad = tf.cast(tf.logical_not(finite), tf.float32)
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, bad), 0.0)

    return agree


def check_clipping(
    agreement: Optional[Agreement],
    global_clipnorm: Optional[float],
    inner_clips: Sequence[Mapping[str, float]],
) -> None:
    """Refuses clipping by a norm that every rank would compute differently.

    Raises:
      ValueError: shared variables would be clipped by different factors and drift apart.
    """
    if agreement is None:
        return
    if any("global_clipnorm" in clips for clips in inner_clips):
        raise ValueError(
            "the inner optimizer's global_clipnorm sees this rank's model-parallel gradients only; "
            "give global_clipnorm to LossScaleOptimizer instead"
        )
    if global_clipnorm is not None and not hasattr(agreement, "total"):
        raise ValueError(
            "global_clipnorm with model_parallel variables needs the ranks' common norm: give the "
            "agreement an attribute `total`, a function that sums a float32 scalar over ranks "
            "(agreement.horovod has it)"
        )
