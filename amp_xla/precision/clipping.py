"""Clipping of unscaled gradients; sparse ones stay sparse."""

from __future__ import annotations

import functools
import numbers
from typing import Any, Callable, List, Optional, Sequence, Tuple

from amp_xla.precision import arrays
from amp_xla.precision.inner import Inner, Pairs
from amp_xla.precision.tensorflow import distinct_rows, tf

Parts = List[Tuple[Inner, Pairs]]
Norm = Callable[[], Any]


def check_limit(limit: Any) -> Optional[float]:
    """Return the limit; raise ValueError if it is not a positive finite number or None."""
    number = isinstance(limit, numbers.Real) and not isinstance(limit, bool)
    if limit is not None and not (number and 0 < limit < float("inf")):
        raise ValueError(
            f"global_clipnorm is {limit!r}; allowed: a positive finite number, or None"
        )
    return limit


def global_norm(
    grads: Sequence[Any],
    local: Sequence[bool] = (),
    total: Optional[Callable[[Any], Any]] = None,
) -> Norm:
    """Return a function that builds the float32 L2 norm of all gradients at its first call.

    Rows that occur twice in a sparse gradient are summed first: the norm is the dense gradient's.
    TensorFlow's ``global_norm`` counts them as two rows, which is smaller and clips too little.

    Args:
      grads: unscaled gradients.
      local: for each gradient, whether it belongs to this rank alone.
      total: sums a float32 scalar over ranks, so that all of them get one norm.
    """

    @functools.lru_cache(maxsize=None)
    def norm() -> Any:
        dense = [distinct_rows(g).values if arrays.is_sparse(g) else g for g in grads]
        halves = [tf.cast(tf.nn.l2_loss(values), tf.float32) for values in dense]
        if total is not None and any(local):
            mine = [half for half, is_local in zip(halves, local) if is_local]
            halves = [half for half, is_local in zip(halves, local) if not is_local]
            halves.append(total(tf.add_n(mine)))
        return tf.sqrt(2.0 * tf.add_n(halves))  # each is sum(g ** 2) / 2

    return norm


def clip(parts: Parts, norm: Norm, limit: Optional[float]) -> Parts:
    """Clip by the global norm, then as each optimizer is configured, then cast.

    Args:
      parts: optimizers and their pairs of (unscaled gradient, variable).
      norm: the global norm of all of them.
      limit: the largest allowed norm; None leaves gradients as they are.

    Returns:
      The same parts with gradients in their variables' dtypes.
    """
    if limit is not None:
        factor = limit / tf.maximum(norm(), limit)
        parts = [
            (inner, _map(pairs, lambda g: g * arrays.cast_like(factor, g)))
            for inner, pairs in parts
        ]
    clipped = [(inner, _as_configured(inner, pairs)) for inner, pairs in parts]
    return [(inner, [(_cast(g, v), v) for g, v in pairs]) for inner, pairs in clipped]


def _as_configured(inner: Inner, pairs: Pairs) -> Pairs:
    """Clip as the optimizer would where it computes gradients: Keras of TensorFlow 1.15."""
    clips = {} if inner.clips_itself else inner.clips
    if "clipnorm" in clips:
        pairs = _map(pairs, lambda g: tf.clip_by_norm(g, clips["clipnorm"]))
    if "clipvalue" in clips:
        pairs = _map(pairs, lambda g: tf.clip_by_value(g, -clips["clipvalue"], clips["clipvalue"]))
    return pairs


def _map(pairs: Pairs, function: Callable[[Any], Any]) -> Pairs:
    return [(arrays.map_floats(function, g), v) for g, v in pairs]


def _cast(gradient: Any, variable: Any) -> Any:
    dtype = arrays.dtype_name(variable) or "float32"
    return arrays.map_floats(lambda values: arrays.cast(values, dtype), gradient)
