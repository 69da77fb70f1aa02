"""Applying a step under a ``tf.distribute`` strategy with several replicas.

A branch inside a replica may not do what optimizers do there (merge replicas), so the decision
is carried to where all replicas are seen at once, and the branch is taken there; every replica
then applies inside it. Source: the structure that tf.distribute requires of any conditional
update, as in Keras' own optimizers.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from amp_xla.precision.tensorflow import tf


def several() -> bool:
    """True inside one of several replicas."""
    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    return context is not None and context.num_replicas_in_sync > 1


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
