"""Clipping of unscaled gradients; sparse ones stay sparse."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from amp_xla.precision import arrays
from amp_xla.precision.inner import Inner, Pairs
from amp_xla.precision.tensorflow import tf

Parts = List[Tuple[Inner, Pairs]]
Norm = Callable[[], Any]
Total = Callable[[Any], Any]


def global_norm(
    grads: Sequence[Any], own: Sequence[bool] = (), total: Optional[Total] = None
) -> Norm:
    """The float32 L2 norm of all gradients together, built at the first call.

    Args:
      grads: unscaled gradients, the same on every rank but for those that are ``own``.
      own: for each gradient, whether it belongs to this rank alone.
      total: sums a float32 scalar over ranks, so that all of them get one norm.

    A row that occurs twice in a sparse gradient counts once, with its sum: the norm is that of
    the dense gradient. (TensorFlow's ``global_norm`` counts it as two rows, which is smaller
    where they agree, so that clipping by it lets too much through.)
    """
    built: List[Any] = []

    def norm() -> Any:
        if not built:
            halves = [tf.cast(tf.nn.l2_loss(_distinct(g)), tf.float32) for g in grads]
            if total is not None and any(own):
                mine = [half for half, is_own in zip(halves, own) if is_own]
                halves = [half for half, is_own in zip(halves, own) if not is_own]
                halves.append(total(tf.add_n(mine)))
            built.append(tf.sqrt(2.0 * tf.add_n(halves)))  # each is sum(g ** 2) / 2
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
    return [(inner, [(_cast(g, v), v) for g, v in pairs]) for inner, pairs in clipped]


def _as_asked(inner: Inner, pairs: Pairs) -> Pairs:
    """What the optimizer was configured with, as its own gradient computation would clip."""
    if inner.clips_itself:
        return pairs
    for name, limit in inner.clips.items():
        if name == "global_clipnorm":
            norm = global_norm([g for g, _ in pairs])()
            pairs = _map(pairs, _Clip(name, limit, limit / tf.maximum(norm, limit)).apply)
        else:
            pairs = _map(pairs, _Clip(name, limit).apply)
    return pairs


class _Clip(NamedTuple):
    """One clipping of a tensor."""

    name: str
    limit: float
    factor: Any = None

    def apply(self, values: Any) -> Any:
        if self.name == "clipvalue":
            return tf.clip_by_value(values, -self.limit, self.limit)
        if self.name == "clipnorm":
            return tf.clip_by_norm(values, self.limit)
        return values * _like(self.factor, values)


def _map(pairs: Pairs, function: Callable[[Any], Any]) -> Pairs:
    return [(arrays.map_floats(function, g), v) for g, v in pairs]


def _like(scalar: Any, gradient: Any) -> Any:
    return arrays.cast_like(scalar, gradient)


def _cast(gradient: Any, variable: Any) -> Any:
    dtype = arrays.dtype_name(variable) or "float32"
    return arrays.map_floats(lambda values: arrays.cast(values, dtype), gradient)
