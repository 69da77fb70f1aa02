"""One decision for all ranks and replicas; ``agreement=`` of ``LossScaleOptimizer``.

An agreement is a function. It takes a boolean scalar tensor, true if this rank's gradients are
finite, and returns a tensor that is true if the gradients of all ranks are finite. It runs on every
rank in every step. Its optional attribute ``total`` is a function that sums a float32 scalar over
ranks. Clipping model-parallel variables by a global norm needs this function.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

from amp_xla.precision.tensorflow import in_v1_graph, tf

Agreement = Callable[[Any], Any]
# Strategies in which each replica has its own copy of a variable, by the names of their classes.
SUPPORTED = ("MirroredStrategy", "CollectiveAllReduceStrategy", "OneDeviceStrategy")


def choose(agreement: Union[Agreement, str, None]) -> Optional[Agreement]:
    """Replace ``auto`` by the agreement that this process needs; return a function or None as is.

    Raises:
      ValueError: another string.
    """
    if not isinstance(agreement, str):
        return agreement
    if agreement != "auto":
        raise ValueError(f"agreement is {agreement!r}; allowed: 'auto', None or a function")
    hvd = joined()
    return None if hvd is None else horovod(hvd)


def joined() -> Optional[Any]:
    """Return ``horovod.tensorflow`` if this process has joined several ranks, or else None."""
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd if hvd is not None and hvd.is_initialized() and hvd.size() > 1 else None


def horovod(hvd: Optional[Any] = None) -> Agreement:
    """Return the agreement of all Horovod ranks.

    Args:
      hvd: ``horovod.tensorflow``, initialized; None imports it.
    """
    module = hvd or importlib.import_module("horovod.tensorflow")

    def agree(finite: Any) -> Any:
        # A sum of integers is exact for any number of ranks, and every version of Horovod has it.
        bad = tf.cast(tf.logical_not(finite), tf.int32)
        return tf.equal(module.allreduce(bad, op=module.Sum), 0)

    agree.total = lambda x: module.allreduce(x, op=module.Sum)  # type: ignore[attr-defined]
    return agree


def horovod_mean(hvd: Optional[Any] = None) -> Callable[[Any], Any]:
    """Return the mean over Horovod ranks, for ``reduce=``; sparse gradients are gathered."""
    module = hvd or importlib.import_module("horovod.tensorflow")
    return lambda gradient: module.allreduce(gradient, op=module.Average)


def check_clipping(
    agreement: Optional[Agreement],
    global_clipnorm: Optional[float],
    inner_clips: Sequence[Mapping[str, float]],
) -> None:
    """Raise ValueError if ranks would clip shared variables by different norms."""
    inner = any("global_clipnorm" in clips for clips in inner_clips)
    local = global_clipnorm is not None and not hasattr(agreement, "total")
    if agreement is not None and (inner or local):
        raise ValueError(
            "global_clipnorm with model_parallel variables needs a norm over all ranks: pass it to "
            "LossScaleOptimizer, not to the inner optimizer, and give the agreement a function "
            "`total` that sums a float32 scalar over ranks"
        )


def _replica() -> Optional[Any]:
    """Return the context of the current replica of a strategy; None outside strategies."""
    return tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None


def replica_index() -> int:
    """Return the number of the current replica; 0 outside strategies."""
    context = _replica()
    number = getattr(context, "replica_id_in_sync_group", 0)
    return number if isinstance(number, int) else 0


def replicas_agree(finite: Any) -> Any:
    """Return whether the gradients of all replicas are finite."""
    context = _replica()
    if context is None or context.num_replicas_in_sync == 1:
        return finite
    bad = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, bad), 0.0)


def check_strategy() -> None:
    """Raise ValueError in a strategy that would unscale gradients a wrong number of times."""
    if not tf.distribute.has_strategy():
        return
    strategy = type(tf.distribute.get_strategy())
    if not any(cls.__name__.strip("_").startswith(SUPPORTED) for cls in strategy.__mro__):
        raise ValueError(
            f"Loss scaling is not supported with the tf.distribute.Strategy: {strategy.__name__}. "
            f"Try using a different Strategy, e.g. a MirroredStrategy"
        )


def in_all_replicas(
    function: Callable[..., Any], gradients: Sequence[Any], scalars: Sequence[Any]
) -> Any:
    """Call ``function(each_replica, scalars)`` once for all replicas, or for the only one.

    Optimizers call ``merge_call``, which TensorFlow forbids in a branch inside a replica. So the
    branch is built where all replicas merge, and each replica applies inside it, as in Keras.

    Args:
      function: builds the branch; ``each_replica(apply)`` inside it runs ``apply(gradients)``
        in every replica with that replica's gradients, and returns the operations.
      gradients: gradients of this replica.
      scalars: tensors with the same value in all replicas; ``function`` gets those of one replica.
    """
    context = _replica()
    if context is None:
        return function(lambda apply: apply(gradients), scalars)
    graph = in_v1_graph()  # elsewhere effects are in order without control dependencies

    def merged(strategy: Any, grads: Any, values: Any) -> Any:
        def each_replica(apply: Callable[[Any], Any]) -> List[Any]:
            results = strategy.extended.call_for_each_replica(apply, args=(grads,))
            if not graph:
                return []
            return [op for r in results for op in strategy.experimental_local_results(r)]

        ones = [strategy.experimental_local_results(value)[0] for value in values]
        return function(each_replica, ones)

    return context.merge_call(merged, args=(list(gradients), list(scalars)))
