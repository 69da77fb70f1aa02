"""Steps under a ``tf.distribute`` strategy: replicas agree and apply together.

Optimizers call ``merge_call``, which TensorFlow forbids in a branch inside a replica. So the branch
is built where all replicas merge, and each replica applies inside it, as in Keras' optimizers.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from amp_xla import backend
from amp_xla.precision.tensorflow import in_v1_graph, tf

# Strategies in which each replica has its own copy of a variable.
SUPPORTED = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy")
_MODULES = [
    module
    for api in (backend.tensorflow(), tf)
    for module in (api.distribute, api.distribute.experimental)
]


def inside() -> bool:
    """Return True inside a replica of a strategy, even if it is the only one."""
    return tf.distribute.has_strategy() and tf.distribute.get_replica_context() is not None


def index() -> int:
    """Return the number of the current replica; 0 outside strategies."""
    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    number = getattr(context, "replica_id_in_sync_group", 0)
    return number if isinstance(number, int) else 0


def agree(finite: Any) -> Any:
    """Return whether the gradients of all replicas are finite."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return finite
    bad = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, bad), 0.0)


def check_supported() -> None:
    """Raise ValueError in a strategy that would unscale gradients a wrong number of times."""
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    known = [getattr(module, name, None) for module in _MODULES for name in SUPPORTED]
    if isinstance(strategy, tuple(cls for cls in known if cls is not None)):
        return
    name = type(strategy).__name__
    if "TPU" in name:
        raise ValueError(
            f"Loss scaling is not supported with {name}: TPUs compute in bfloat16, which has "
            f"float32's range; use the optimizer without LossScaleOptimizer there"
        )
    raise ValueError(
        f"Loss scaling is not supported with the tf.distribute.Strategy: {name}. Try using a "
        f"different Strategy, e.g. a MirroredStrategy; allowed: {', '.join(SUPPORTED)}"
    )


def together(function: Callable[..., Any], gradients: Sequence[Any], scalars: Sequence[Any]) -> Any:
    """Call ``function(each_replica, scalars)`` once for all replicas.

    Args:
      function: builds the branch; ``each_replica(apply)`` inside it runs ``apply(gradients)``
        in every replica with that replica's gradients, and returns the operations.
      gradients: this replica's.
      scalars: tensors with the same value in all replicas; passed on as one replica has them.
    """
    graph = in_v1_graph()  # elsewhere effects are in order without control dependencies

    def merged(strategy: Any, grads: Any, values: Any) -> Any:
        def each_replica(apply: Callable[[Any], Any]) -> List[Any]:
            results = strategy.extended.call_for_each_replica(apply, args=(grads,))
            if not graph:
                return []
            return [op for r in results for op in strategy.experimental_local_results(r)]

        ones = [strategy.experimental_local_results(value)[0] for value in values]
        return function(each_replica, ones)

    context = tf.distribute.get_replica_context()
    return context.merge_call(merged, args=(list(gradients), list(scalars)))
