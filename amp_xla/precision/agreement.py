"""Decisions and means over ranks: ``agreement=`` and ``reduce=`` of ``LossScaleOptimizer``.

An agreement takes a boolean scalar tensor, whether this rank's gradients are finite, and returns
whether all ranks' are. It runs on every rank in every step. Its attribute ``total``, if it has one,
sums a float32 scalar over ranks: clipping model-parallel variables by a global norm needs it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from amp_xla.precision.tensorflow import tf

Agreement = Callable[[Any], Any]


def choose(agreement: Union[Agreement, str, None]) -> Optional[Agreement]:
    """Return the agreement that ``auto`` means here; a function or None as it is.

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
    """Return the agreement of all Horovod ranks.

    Args:
      hvd: ``horovod.tensorflow``, initialized; None imports it.
    """
    module = importlib.import_module("horovod.tensorflow") if hvd is None else hvd

    def agree(finite: Any) -> Any:
        # A sum of integers: exact for any number of ranks, and every Horovod has it.
        bad = tf.cast(tf.logical_not(finite), tf.int32)
        return tf.equal(module.allreduce(bad, op=module.Sum), 0)

    agree.total = lambda x: module.allreduce(x, op=module.Sum)  # type: ignore[attr-defined]
    return agree


def horovod_mean(hvd: Optional[Any] = None) -> Callable[[Any], Any]:
    """Return the mean over Horovod ranks, for ``reduce=``; sparse gradients are gathered."""
    module = importlib.import_module("horovod.tensorflow") if hvd is None else hvd
    return lambda gradient: module.allreduce(gradient, op=module.Average)


def check_clipping(
    agreement: Optional[Agreement],
    global_clipnorm: Optional[float],
    inner_clips: Sequence[Mapping[str, float]],
) -> None:
    """Raise ValueError if ranks would clip shared variables by different norms."""
    if agreement is None:
        return
    if any("global_clipnorm" in clips for clips in inner_clips):
        raise ValueError(
            "the inner optimizer's global_clipnorm uses this rank's model-parallel gradients only; "
            "give global_clipnorm to LossScaleOptimizer instead"
        )
    if global_clipnorm is not None and not hasattr(agreement, "total"):
        raise ValueError(
            "global_clipnorm with model_parallel variables needs the ranks' common norm: give the "
            "agreement an attribute `total`, a function that sums a float32 scalar over ranks "
            "(agreement.horovod has it)"
        )
