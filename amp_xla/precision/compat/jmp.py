"""jmp's names for this package's policies and loss scales.

``import amp_xla.precision.compat.jmp as jmp``.

Defects of jmp 0.0.4 that are mended here: ``jit`` loses the minimum scale; the README's dynamic
example fails; each new value of a static scale causes a retrace; with some types of scale,
gradients are unscaled in float16.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Dict, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from amp_xla.precision import arrays
from amp_xla.precision import loss_scale as scales
from amp_xla.precision.arrays import SPELLINGS, half_dtype
from amp_xla.precision.jax import all_finite, register, select_tree
from amp_xla.precision.loss_scale import NoOpLossScale, _LossScale
from amp_xla.precision.policy import Policy, cast_to_full, cast_to_half, get_policy

__all__ = (
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "StaticLossScale",
    "all_finite",
    "cast_to_full",
    "cast_to_half",
    "get_policy",
    "half_dtype",
    "select_tree",
)

dtype_to_names: Dict[Any, Tuple[str, ...]] = {
    getattr(jnp, name): spellings for name, spellings in SPELLINGS.items()
}


@dataclasses.dataclass(frozen=True)
class StaticLossScale(_LossScale):
    """A constant loss scale, stored as a pytree leaf: changing its value causes no retrace.

    As in jmp, a scale of 0 is not stored as a leaf, unless it is a JAX array.
    """

    loss_scale: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss_scale", arrays.scalar(self.loss_scale, "float32"))


@dataclasses.dataclass(frozen=True)
class DynamicLossScale(_LossScale):
    """This package's ``DynamicLossScale`` with jmp's arguments.

    ``growth_interval`` is ``period``, ``minimum`` is ``min_loss_scale``, ``growth_factor`` is
    ``factor`` and ``backoff_factor`` is 1 / ``factor``.
    """

    loss_scale: Any
    counter: Any = 0
    period: Any = 2000
    factor: Any = 2
    min_loss_scale: Any = 1.0

    def __post_init__(self) -> None:
        _warn_if_not_floating(self.loss_scale, "loss_scale")
        _warn_if_not_floating(self.min_loss_scale, "min_loss_scale")
        put = object.__setattr__
        put(self, "loss_scale", arrays.scalar(self.loss_scale, "float32"))
        put(self, "counter", arrays.scalar(self.counter, "int32"))
        put(self, "min_loss_scale", float(self.min_loss_scale))

    growth_interval = property(lambda self: int(self.period))
    growth_factor = property(lambda self: self.factor)
    backoff_factor = property(lambda self: 1 / self.factor)
    minimum = property(lambda self: max(self.min_loss_scale, scales.SMALLEST_SCALE))
    maximum = scales.LARGEST_SCALE
    replace = scales.DynamicLossScale.replace

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """Return the next state, which depends on whether grads are finite."""
        assert jnp.ndim(grads_finite) == 0, "Expected boolean scalar"
        adjust: Any = scales.DynamicLossScale.adjust
        return adjust(self, grads_finite)


LossScale = Union[NoOpLossScale, StaticLossScale, DynamicLossScale]

register(DynamicLossScale, ("loss_scale", "counter"), ("period", "factor", "min_loss_scale"))


def _flatten_static(value: StaticLossScale) -> Any:
    zero = isinstance(value.loss_scale, np.float32) and value.loss_scale == 0
    return ((), True) if zero else ((value.loss_scale,), False)


def _unflatten_static(zero: bool, children: Any) -> StaticLossScale:
    new = object.__new__(StaticLossScale)
    object.__setattr__(new, "loss_scale", np.float32(0) if zero else children[0])
    return new


jax.tree_util.register_pytree_node(StaticLossScale, _flatten_static, _unflatten_static)


def _warn_if_not_floating(x: Any, name: str) -> None:
    dtype = arrays.dtype_name(x)
    if dtype is not None and not arrays.is_float(x):
        warnings.warn(f"Expected floating type for {name}, got {dtype}", stacklevel=4)
