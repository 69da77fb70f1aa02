"""Clipping of unscaled gradients; sparse ones stay sparse."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from amp_xla.precision import arrays
from amp_xla.precision.inner import Inner, Pairs
from amp_xla.precision.tensorflow import tf

Parts = List[Tuple[Inner, Pairs]]
Norm = Callable[[], Any]


def global_norm(grads: Sequence[Any]) -> Norm:
    """The float32 L2 norm of all gradients together, built at the first call.

    A row that occurs twice in a sparse gradient counts once, with its sum: the norm is that of
    the dense gradient. (TensorFlow's ``global_norm`` counts it as two rows, which is smaller
    where they agree, so that clipping by it lets too much through.)
    """
    built: List[Any] = []

    def norm() -> Any:
        if not built:
            halves = [tf.nn.l2_loss(_distinct(g)) for g in grads]  # sum(g ** 2) / 2
            built.append(tf.sqrt(2.0 * tf.add_n([tf.cast(half, tf.float32) for half in halves])))
        return built[0]

    return norm


def _distinct(gradient: Any) -> Any:
    """A dense gradient as it is, the rows of a sparse one with duplicates summed."""
    if not arrays.is_sparse(gradient):
        return gradient
    rows, positions = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))


def clips_globally(parts: Parts, clipnorm: Optional[float]) -> bool:
    """True where an infinite norm of finite gradients would turn them into NaN."""
    return clipnorm is not None or any("global_clipnorm" in inner.clips for inner, _ in parts)


def clip(parts: Parts, norm: Norm, clipnorm: Optional[float]) -> Parts:
    """Clips by the wrapper's global norm, then as each optimizer asks, then casts.

    Args:
      parts: optimizer and its pairs of (unscaled gradient, variable).
      norm: the global norm of all of them.
      clipnorm: the largest allowed; None leaves them.

    Returns:
      The same parts with gradients in their variables' dtypes.
    """
    if clipnorm is not None:
        factor = clipnorm / tf.maximum(norm(), clipnorm)
        parts = [(inner, _map(pairs, lambda g: g * _like(factor, g))) for inner, pairs in parts]
    clipped = [(inner, _as_asked(inner, pairs)) for inner, pairs in parts]
    return [
        (inner, [(arrays.map_floats(lambda x: _cast(x, v), g), v) for g, v in pairs])
        for inner, pairs in clipped
    ]


def _as_asked(inner: Inner, pairs: Pairs) -> Pairs:
    if inner.clips_itself:
        return pairs
    for name, limit in inner.clips.items():
        if name == "clipvalue":
            pairs = _map(pairs, lambda g, limit=limit: tf.clip_by_value(g, -limit, limit))
        elif name == "clipnorm":
            pairs = _map(pairs, lambda g, limit=limit: tf.clip_by_norm(g, limit))
        else:
            whole = global_norm([g for g, _ in pairs])()
            factor = limit / tf.maximum(whole, limit)
            pairs = _map(pairs, lambda g, factor=factor: g * _like(factor, g))
    return pairs


def _map(pairs: Pairs, function: Callable[[Any], Any]) -> Pairs:
    return [(arrays.map_floats(function, g), v) for g, v in pairs]


def _like(scalar: Any, gradient: Any) -> Any:
    return arrays.cast_like(scalar, gradient)


def _cast(values: Any, variable: Any) -> Any:
    return arrays.cast(values, arrays.dtype_name(variable) or "float32")
