"""Loss scales: immutable values with jmp's method names, and their state machine.

The same classes work with NumPy, JAX (as pytrees, after ``amp_xla.precision.jax`` is imported) and
TensorFlow (in the variables of ``amp_xla.precision.tensorflow``). Imports no framework.

Dynamic scaling, per step::

    loss *= scale; grads /= scale                       # both in float32
    if every gradient is finite:
        counter += 1
        if counter == growth_interval:                  # the N-th finite step in a row
            counter = 0
            scale = min(scale * growth_factor, maximum) # unchanged if that overflows
    else:
        counter = 0
        scale = max(scale * backoff_factor, minimum)    # and this step's update is skipped

Source: Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from typing import Any, Callable, ClassVar, Dict, Optional, TypeVar, Union

import numpy as np

from amp_xla.precision import arrays

T = TypeVar("T")

DEFAULT_INITIAL = 2.0**15
DEFAULT_GROWTH_INTERVAL = 2000  # steps; PyTorch's, Keras' and jmp's default
# A scale is a float32 that never leaves the normal range: below it hardware flushes to zero.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
LARGEST_SCALE = float(np.finfo(np.float32).max)


class LossScaleWarning(UserWarning):
    """Warning about a problem with loss scaling that does not stop training."""


class _LossScale:
    """Base class of the loss scales; ``spec()`` has ``kind`` as its name, e.g. ``static``."""

    kind: ClassVar[str]
    loss_scale: Any

    def scale(self, tree: T) -> T:
        """Multiply floating leaves by the scale, in float32 (float64 stays float64).

        float16 and bfloat16 become float32: a loss of 4, times 2**15, exceeds float16's 65504.
        """
        return arrays.map_floats(lambda x: arrays.widen(x) * self._factor(x), tree, True)

    def unscale(self, tree: T) -> T:
        """Divide floating leaves by the scale, in float32 (float64 stays float64).

        float16 and bfloat16 become float32, because float16 rounds small quotients to zero, such as
        2**-11 / 2**15. Sparse gradients stay sparse.
        """
        return arrays.map_floats(lambda x: arrays.widen(x) / self._factor(x), tree, True)

    def _factor(self, like: Any) -> Any:
        return arrays.cast_like(self.loss_scale, arrays.widen(like))

    def adjust(self, grads_finite: Any) -> Any:
        """Return the loss scale for the next step; this object does not change."""
        return self

    def spec(self) -> Dict[str, Any]:
        """Return the JSON-able description that ``from_spec`` reads."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = ((field.name, getattr(self, field.name)) for field in fields)
        plain = {name: v.item() if hasattr(v, "item") else v for name, v in values}
        return {"kind": self.kind, **plain}


@dataclasses.dataclass(frozen=True)
class NoOpLossScale(_LossScale):
    """No scaling: ``scale`` and ``unscale`` return their argument unchanged."""

    kind = "none"

    @property
    def loss_scale(self) -> int:
        return 1

    def scale(self, tree: T) -> T:
        return tree

    def unscale(self, tree: T) -> T:
        return tree


@dataclasses.dataclass(frozen=True)
class StaticLossScale(_LossScale):
    """A constant scale.

    Attributes:
      loss_scale: any scalar; stored as a float32 scalar. In JAX it is a pytree leaf, so that a new
        value causes no retrace.

    Raises:
      ValueError: the scale is not a positive finite number that float32 can hold.
    """

    kind = "static"
    loss_scale: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss_scale", arrays.scalar(self.loss_scale, "float32"))
        check_scale("loss_scale", self.loss_scale)


@dataclasses.dataclass(frozen=True)
class DynamicLossScale(_LossScale):
    """A scale that grows while gradients stay finite and shrinks when they do not.

    Attributes:
      loss_scale: the current scale, any scalar; stored as a float32 scalar.
      counter: int32 scalar, finite steps in a row since the scale last grew.
      growth_interval: finite steps in a row before the scale grows; at least 1.
      growth_factor: factor of growth; more than 1.
      backoff_factor: factor after a non-finite step, between 0 and 1; None =
        ``1 / growth_factor``.
      minimum: the scale never shrinks below it (may be less than 1, never 0).
      maximum: the scale never grows above it (finite).

    Raises:
      ValueError: a value is outside its range; the message names value and range.
    """

    kind = "dynamic"
    loss_scale: Any = DEFAULT_INITIAL
    counter: Any = 0
    growth_interval: int = DEFAULT_GROWTH_INTERVAL
    growth_factor: float = 2.0
    backoff_factor: Optional[float] = None
    minimum: float = 1.0
    maximum: float = LARGEST_SCALE

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        put("loss_scale", arrays.scalar(self.loss_scale, "float32"))
        put("counter", arrays.scalar(self.counter, "int32"))
        put("growth_interval", whole_number("growth_interval", self.growth_interval, 1, "steps"))
        growth, backoff = float(self.growth_factor), self.backoff_factor
        if not 1.0 < growth <= LARGEST_SCALE:
            raise ValueError(f"growth_factor is {growth}; allowed: more than 1 and finite")
        put("growth_factor", growth)
        backoff = 1.0 / growth if backoff is None else float(backoff)
        if not 0.0 < backoff < 1.0:
            raise ValueError(f"backoff_factor is {backoff}; allowed: between 0 and 1")
        put("backoff_factor", backoff)
        for name in ("minimum", "maximum"):
            put(name, float(getattr(self, name)))
            check_scale(name, getattr(self, name))
        if self.minimum > self.maximum:
            raise ValueError(f"minimum is {self.minimum}, above maximum, which is {self.maximum}")
        check_scale("loss_scale", self.loss_scale, self.minimum, self.maximum)

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """Return the next state; ``grads_finite`` is a boolean scalar.

        There is no division, because compilers change the last bit of divisions by constants.
        """
        scale, counter = self.loss_scale, self.counter
        xp = arrays.namespace(scale, counter, grads_finite)
        with np.errstate(over="ignore"):
            grown = scale * np.float32(self.growth_factor)
        grown = xp.where(xp.isfinite(grown), xp.minimum(grown, np.float32(self.maximum)), scale)
        shrunk = xp.maximum(scale * np.float32(self.backoff_factor), np.float32(self.minimum))
        # >=, not ==: a counter restored under a shorter interval must not run past it.
        due = counter >= np.int32(self.growth_interval - 1)
        scale = xp.where(grads_finite, xp.where(due, grown, scale), shrunk)
        counts = xp.logical_and(grads_finite, xp.logical_not(due))
        return self.replace(scale, xp.int32(xp.where(counts, counter + np.int32(1), 0)))

    def replace(self, loss_scale: Any, counter: Any) -> DynamicLossScale:
        """Return a copy with another state, which is not checked: it may be a JAX tracer."""
        new = copy.copy(self)
        object.__setattr__(new, "loss_scale", loss_scale)
        object.__setattr__(new, "counter", counter)
        return new


LossScale = Union[NoOpLossScale, StaticLossScale, DynamicLossScale]


def from_spec(spec: Any) -> Any:
    """Return the loss scale that ``spec`` describes.

    Args:
      spec: a loss scale (also TensorFlow's ``FixedLossScale`` and ``DynamicLossScale``), the result
        of its method ``spec()``, a number, ``"dynamic"``, or None for no scaling.

    Raises:
      ValueError, TypeError: ``spec`` is none of these.
    """
    if isinstance(spec, _LossScale):
        return spec
    if spec is None:
        return NoOpLossScale()
    if hasattr(spec, "get_config"):  # in TensorFlow
        fields = spec.get_config()
        if "loss_scale_value" in fields:
            return from_spec(fields["loss_scale_value"])
        if {"initial_loss_scale", "increment_period", "multiplier"} <= set(fields):
            initial, interval = fields["initial_loss_scale"], fields["increment_period"]
            return DynamicLossScale(
                initial, growth_interval=interval, growth_factor=fields["multiplier"],
                minimum=min(1.0, initial),
            )  # fmt: skip
    if isinstance(spec, dict):
        fields = dict(spec)
        kinds = {cls.kind: cls for cls in (NoOpLossScale, StaticLossScale, DynamicLossScale)}
        kind = fields.pop("kind", None)
        if kind not in kinds:
            raise ValueError(f"loss scale kind is {kind!r}; allowed: {', '.join(kinds)}")
        known = [field.name for field in dataclasses.fields(kinds[kind])]
        for name in set(fields) - set(known):
            raise ValueError(f"{kind} loss scale has no {name!r}; allowed: {', '.join(known)}")
        return kinds[kind](**fields)
    if isinstance(spec, str) and spec == "dynamic":
        return DynamicLossScale()
    number = spec
    if isinstance(spec, str):
        with contextlib.suppress(ValueError):
            number = float(spec)
    if isinstance(number, (str, bool, np.bool_)) or hasattr(spec, "get_config"):
        raise ValueError(f"loss scale is {spec!r}; allowed: a positive number or 'dynamic'")
    one = isinstance(number, (int, float, np.number)) and number == 1  # not for JAX's tracers
    return NoOpLossScale() if one else StaticLossScale(number)


def scale_loss(loss: Any, scale: Any = 1000.0) -> Any:
    """Return ``loss * scale`` in float32; nothing unscales the gradients.

    Clipping and the optimizer then get gradients that are ``scale`` times larger. This hardly
    changes Adam and LAMB, and multiplies SGD's learning rate. ``LossScaleOptimizer`` unscales.

    Args:
      loss: floating tensor, or a loss function of Keras, ``(y_true, y_pred) -> loss``.
      scale: positive finite number.

    Raises:
      ValueError: the scale is not a positive finite number, or ``loss`` is the name of a loss.
    """
    static = StaticLossScale(scale)
    if isinstance(loss, str):
        raise ValueError(
            f"loss is the name {loss!r}; allowed: a tensor or a function, such as "
            f"keras.losses.get({loss!r})"
        )
    if not callable(loss):
        return static.scale(loss)
    function: Callable[..., Any] = loss

    @functools.wraps(function, updated=())
    def scaled(*args: Any, **kwargs: Any) -> Any:
        return static.scale(function(*args, **kwargs))

    return scaled


def whole_number(name: str, value: Any, least: int, unit: str) -> int:
    """Return ``value`` as an int; raise ValueError if it is not whole or is below ``least``."""
    number = hasattr(value, "__int__") and not isinstance(value, (bool, np.bool_))
    if not number or value % 1 or value < least:
        raise ValueError(f"{name} is {value}; allowed: a whole number of {unit}, at least {least}")
    return int(value)


def check_scale(
    name: str, value: Any, low: float = SMALLEST_SCALE, high: float = LARGEST_SCALE
) -> None:
    """Raise ValueError for arrays and for numbers outside [low, high]; accept scalar tensors."""
    if getattr(value, "ndim", 0):
        raise ValueError(f"{name} is {value}; allowed: one number")
    if isinstance(value, (int, float, np.generic)) and not low <= float(value) <= high:
        raise ValueError(f"{name} is {float(value)}; allowed: {low} to {high}")
