"""Precision, XLA mode and numeric constants as values. Imports no TensorFlow.

``Settings`` is what the user chose, by keyword arguments or environment variables ``AMP_XLA_*``
(arguments win); ``Precision`` is the result on this machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from amp_xla.errors import SettingsError
from amp_xla.settings.auto import Choice

PREFIX = "AMP_XLA_"
PRECISIONS: Tuple[str, ...] = ("fp32", "tf32", "amp")
XLA_MODES: Tuple[str, ...] = ("off", "on", "no_lazy", "lite")
AUTO = "auto"  # a recipe turns XLA on or off once it has read its data
DEVICES: Tuple[str, ...] = ("auto", "cpu", "gpu")

# Two masks (padding and causal) may be added to one attention score, so twice the infinity must
# fit float16, whose largest number is 65504.
MAX_HALF_INFINITY = 32752.0
# float16 rounds this constant, half of its smallest subnormal, and smaller ones to zero.
ZERO_IN_HALF = 2.0**-25

LossScaleSetting = Union[float, str]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The user's choices, validated.

    Attributes:
      precision: ``fp32`` (true float32, TF32 off), ``tf32`` (the GPU's default) or ``amp``
        (the auto-mixed-precision graph rewrite).
      xla: ``off``, ``on`` (auto-clustering), ``no_lazy`` (as ``on``, but each batch shape is
        compiled before its first batch), ``lite`` (only operations that XLA can fuse,
        so no matrix products; stock TensorFlow 1.15 does not have it), ``auto`` (recipes only: on
        or off, see ``amp_xla.settings.auto``).
      infinity: number that bert4keras subtracts from masked scores; None = 1e4 for amp, else
        bert4keras' default, 1e12. bert4keras 0.11.5 masks with ``where`` and does not use it.
      epsilon: Keras' fuzz factor; None = 1e-5 for amp, else Keras' default, 1e-7. bert4keras' LAMB
        uses it as its lowest learning rate, so it must be below your learning rate.
      loss_scale: factor of the loss in the backward pass: a number, or ``dynamic``; None = 1000
        in float16, else 1.
      device: ``auto`` (the GPU if there is one; a GPU that TensorFlow cannot use is an error
        before training), ``cpu`` (never a GPU) or ``gpu`` (an error without one).
      cache: ``on`` (TensorFlow 2 keeps what XLA compiles, and loads it at the next start) or
        ``off``.

    Raises:
      SettingsError: a value is not allowed; the message lists what is.
    """

    precision: str = "amp"
    xla: str = "off"
    infinity: Optional[float] = None
    epsilon: Optional[float] = None
    loss_scale: Optional[LossScaleSetting] = None
    device: str = "auto"
    cache: str = "on"

    def __post_init__(self) -> None:
        choices = PRECISIONS, (*XLA_MODES, AUTO), DEVICES, ("on", "off")
        for name, allowed in zip(("precision", "xla", "device", "cache"), choices):
            value = getattr(self, name)
            if value not in allowed:
                raise SettingsError(
                    f"{name}={value!r} is not known{_hint(str(value), allowed)}; "
                    f"allowed: {', '.join(allowed)}"
                )
        object.__setattr__(self, "infinity", _number("infinity", self.infinity))
        object.__setattr__(self, "epsilon", _number("epsilon", self.epsilon))
        if self.loss_scale != "dynamic":
            scales = "1, a number such as 1000, or dynamic"
            object.__setattr__(self, "loss_scale", _number("loss_scale", self.loss_scale, scales))
        if self.precision == "amp":
            if self.infinity is not None and self.infinity > MAX_HALF_INFINITY:
                raise SettingsError(
                    f"infinity={self.infinity:g} does not fit float16 arithmetic (two masks may "
                    f"add up, the largest float16 is 65504): with precision=amp it must be at "
                    f"most {MAX_HALF_INFINITY:g}; 1e4 is known to work"
                )
            if self.epsilon is not None and self.epsilon <= ZERO_IN_HALF:
                raise SettingsError(
                    f"epsilon={self.epsilon:g} rounds to zero in float16: with precision=amp it "
                    f"must be above {ZERO_IN_HALF:.1e}; 1e-5 is known to work"
                )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **overrides: Any) -> Settings:
        """Return the settings of ``AMP_XLA_*`` in ``environ``; arguments that are not None win.

        Raises:
          SettingsError: an ``AMP_XLA_`` name or an argument is unknown, or a value is not allowed.
        """
        names = {PREFIX + f.name.upper(): f.name for f in dataclasses.fields(cls)}
        chosen = {key: value.strip() for key, value in environ.items() if key.startswith(PREFIX)}
        for kind, keys, known in (
            ("environment variable", chosen, [*names]), ("setting", overrides, [*names.values()]),
        ):  # fmt: skip
            for key in sorted(set(keys) - set(known)):
                hint = _hint(key, known)
                raise SettingsError(f"unknown {kind} {key}{hint}; known are {', '.join(known)}")
        values: Dict[str, Any] = {names[key]: value for key, value in chosen.items() if value}
        values.update({k: v for k, v in overrides.items() if v is not None})
        return cls(**values)


def default_loss_scale(half: Optional[str]) -> float:
    """Return the default loss scale: 1000 in float16, else 1 (bfloat16 has float32's range)."""
    return 1000.0 if half == "float16" else 1.0


@dataclasses.dataclass(frozen=True)
class Precision:
    """Half precision and numeric constants of this process, decided once.

    Attributes:
      settings: what the user chose; XLA mode ``auto`` is replaced once it has chosen on or off.
      half: dtype of matrix products in mixed precision; None if everything is float32.
      machine_half: half precision that this machine can train in: ``float16``, ``bfloat16``, None.
      reason: clause that explains ``machine_half``.
      loss_scale: a number, or ``dynamic``.
      infinity, epsilon: bert4keras' and Keras' constants; None keeps their defaults.
      choice: what ``auto`` chose for XLA; None if the user chose, or nothing is chosen yet.
    """

    settings: Settings
    half: Optional[str]
    machine_half: Optional[str]
    reason: str
    loss_scale: LossScaleSetting
    infinity: Optional[float]
    epsilon: Optional[float]
    choice: Optional[Choice] = None

    @classmethod
    def of(cls, chosen: Settings, machine_half: Optional[str], reason: str = "") -> Precision:
        """Resolve the user's settings for a machine that can train in ``machine_half``."""
        amp = chosen.precision == "amp"
        half = machine_half if amp else None
        return cls(
            chosen, half, machine_half, reason,
            loss_scale=chosen.loss_scale or default_loss_scale(half),
            infinity=chosen.infinity or (1e4 if amp else None),
            epsilon=chosen.epsilon or (1e-5 if amp else None),
        )  # fmt: skip

    @property
    def summary(self) -> str:
        """The precision, e.g. ``precision amp (float16: GPU)``."""
        reason = f": {self.reason}" if self.reason else ""
        half = f" ({self.half or 'float32'}{reason})" if self.settings.precision == "amp" else ""
        return f"precision {self.settings.precision}{half}"

    def describe(self) -> str:
        """Return e.g. ``precision amp (float16: GPU), XLA off, infinity 1e4, epsilon 1e-5``."""
        words = [self.summary, str(self.choice) if self.choice else f"XLA {self.settings.xla}"]
        constants = {"infinity": self.infinity, "epsilon": self.epsilon}
        words += [f"{name} {plain(v)}" for name, v in constants.items() if v is not None]
        return ", ".join(words)


def plain(value: Union[float, str]) -> str:
    """Return a number as people write it, e.g. ``1e4``, ``1e-5``, ``1000``."""
    if isinstance(value, str):
        return value
    exponent = math.log10(value)
    power = exponent.is_integer() and abs(exponent) >= 4
    return f"1e{int(exponent)}" if power else f"{value:g}"


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _number(
    name: str, value: Any, allowed: str = "a number such as 1e4 or 1e-5"
) -> Optional[float]:
    if value is None:
        return None
    shown = f"{name}={value!r}"[:60]
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"{shown} is not a number; allowed: {allowed}") from None
    if not 0 < number < 3.4e38 or isinstance(value, bool):
        raise SettingsError(f"{shown} must be above 0 and finite in float32; allowed: {allowed}")
    return number
