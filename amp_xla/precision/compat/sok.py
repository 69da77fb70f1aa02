"""SparseOperationKit 1.x's names for mixed precision, with this package's ``LossScaleOptimizer``.

``import amp_xla.precision.compat.sok as sok`` gives
``sok.tf.keras.mixed_precision.LossScaleOptimizer`` and
``sok.split_embedding_variable_from_others``. Gradients of embedding variables that are sharded over
ranks count in the decision to skip, and stay on their rank. Other gradients are averaged.
"""

from __future__ import annotations

import types
from typing import Any, Callable, Iterable, List, Tuple

from amp_xla.precision import agreement
from amp_xla.precision import optimizer as wrapper
from amp_xla.precision.compat.keras.loss_scale_optimizer import loss_scale_of
from amp_xla.precision.tensorflow import Pairs

__all__ = (
    "LossScaleOptimizer",
    "is_embedding_variable",
    "split_embedding_variable_from_others",
    "split_pairs",
    "tf",
)

Predicate = Callable[[Any], bool]


class LossScaleOptimizer(wrapper.LossScaleOptimizer):
    """The loss-scale optimizer; accepts the arguments of TensorFlow 1.15, 2.x and this package.

    ``apply_gradients`` averages gradients over Horovod's ranks. Gradients that a script has already
    averaged keep their values. Gradients of tables that are spread over ranks, and of
    ``model_parallel`` variables, are not averaged. With ``reduce=``, ``apply_gradients`` does not
    average; ``minimize`` and ``compute_gradients`` call ``reduce`` instead.

    Args:
      opt: the optimizer to wrap.
      loss_scale: a number, ``"dynamic"`` or a loss scale of this package. A boolean is taken as
        ``dynamic``, which is the second argument in TensorFlow 2.
      *others: ``dynamic`` (not if ``loss_scale`` is a boolean), ``initial_scale`` and
        ``dynamic_growth_steps``, as in Keras.
      **more: these three by name; arguments of ``LossScaleOptimizer`` of this package.
    """

    def __init__(self, opt: Any, loss_scale: Any = "dynamic", *others: Any, **more: Any) -> None:
        names = ("dynamic", "initial_scale", "dynamic_growth_steps")
        values = {name: more.pop(name, None) for name in names}
        named = {name: value for name, value in values.items() if value is not None}
        if isinstance(loss_scale, bool):  # TensorFlow 2's ``dynamic``
            loss_scale = loss_scale_of(loss_scale, *others, **named)
        elif named or any(value is not None for value in others):
            dynamic = others[0] if others and others[0] is not None else named.pop("dynamic", True)
            loss_scale = loss_scale_of(dynamic, *others[1:], **named)
        super().__init__(opt, loss_scale, **more)

    def _averaged(self, pairs: Pairs, aggregate: bool) -> Pairs:
        hvd = agreement.joined()
        if hvd is None or not aggregate or self._reduce is not None:
            return pairs
        average = agreement.horovod_mean(hvd)
        return agreement.over_ranks(pairs, average, self._on_one_rank, None)

    def _on_one_rank(self, variable: Any) -> bool:
        table = hasattr(variable, "_amp_xla_rows") or _is_sharded(variable)
        return table or self._steps.model_parallel(variable)


def is_embedding_variable(variable: Any) -> bool:
    """Return True for SparseOperationKit's variables and those of Keras' Embedding layers."""
    return (
        _is_sharded(variable) or variable.name.partition(":")[0].rpartition("/")[2] == "embeddings"
    )


def _is_sharded(variable: Any) -> bool:
    return any("EmbeddingVariable" in cls.__name__ for cls in type(variable).__mro__)


def split_embedding_variable_from_others(
    variables: Iterable[Any], predicate: Predicate = is_embedding_variable
) -> Tuple[List[Any], List[Any]]:
    """Return (embedding variables, other variables), each in the given order.

    Compute the gradients of each list separately. Or compute those of all variables, and split the
    pairs (gradient, variable) with ``split_pairs``. Do not slice the list of all gradients at the
    length of the first list: embedding variables need not come first in it.
    """
    every = list(variables)
    return [v for v in every if predicate(v)], [v for v in every if not predicate(v)]


def split_pairs(
    grads_and_vars: Iterable[Tuple[Any, Any]], predicate: Predicate = is_embedding_variable
) -> Tuple[List[Tuple[Any, Any]], List[Tuple[Any, Any]]]:
    """Split pairs (gradient, variable): return those of embedding variables, and the others."""
    every = list(grads_and_vars)
    return [p for p in every if predicate(p[1])], [p for p in every if not predicate(p[1])]


AmpLossScaleOptimizer = LossScaleOptimizer  # the name in .keras files

# SparseOperationKit's users write sok.tf.keras.mixed_precision.LossScaleOptimizer.
tf = types.SimpleNamespace(
    keras=types.SimpleNamespace(
        mixed_precision=types.SimpleNamespace(LossScaleOptimizer=LossScaleOptimizer)
    )
)
