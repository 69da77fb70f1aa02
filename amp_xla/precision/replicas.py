"""Applying a step under a ``tf.distribute`` strategy with several replicas.

A branch inside a replica may not do what optimizers do there (merge replicas), so the decision
is carried to where all replicas are seen at once, and the branch is taken there; every replica
then applies inside it. Source: the structure that tf.distribute requires of any conditional
update, as in Keras' own optimizers.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from amp_xla import backend
from amp_xla.precision.tensorflow import tf

_STRATEGIES = [
    module
    for api in (backend.tensorflow(), tf)
    for module in (api.distribute, api.distribute.experimental)
]


def inside() -> bool:
    """True inside a replica of a strategy, be it the only one: optimizers merge there as well."""
    return tf.distribute.has_strategy() and tf.distribute.get_replica_context() is not None


# Those whose every replica has a variable of its own to unscale the gradient of.
SUPPORTED = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy")


def check_supported() -> None:
    """Refuses a strategy in which gradients would be unscaled a wrong number of times.

    Raises:
      ValueError: naming the strategy and those that can.
    """
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    known = [getattr(module, name, None) for module in _STRATEGIES for name in SUPPORTED]
    if isinstance(strategy, tuple(cls for cls in known if cls is not None)):
        return
    name = type(strategy).__name__
    if "TPU" in name:
        raise ValueError(
            f"Loss scaling is not supported with {name}: TPUs compute in bfloat16, which has "
            f"float32's range and needs none; leave the LossScaleOptimizer away there"
        )
    raise ValueError(
        f"Loss scaling is not supported with the tf.distribute.Strategy: {name}. Try using a "
        f"different Strategy, e.g. a MirroredStrategy; allowed: {', '.join(SUPPORTED)}"
    )


def together(function: Callable[..., Any], gradients: Sequence[Any], scalars: Sequence[Any]) -> Any:
    """Calls ``function(each_replica, scalars)`` once for all replicas.

    Args:
      function: builds the branch; ``each_replica(apply)`` inside it runs ``apply(gradients)``
        in every replica with that replica's gradients.
      gradients: this replica's.
      scalars: tensors on whose values all replicas agree; handed on as one replica has them.
    """

    def merged(strategy: Any, grads: Any, values: Any) -> Any:
        def each_replica(apply: Callable[[Any], Any]) -> List[Any]:
            strategy.extended.call_for_each_replica(apply, args=(grads,))
            return []  # in the functions that strategies run, effects are ordered by themselves

        ones = [strategy.experimental_local_results(value)[0] for value in values]
        return function(each_replica, ones)

    context = tf.distribute.get_replica_context()
    return context.merge_call(merged, args=(list(gradients), list(scalars)))
