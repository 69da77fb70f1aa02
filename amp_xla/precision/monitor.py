"""Warnings about skipped steps that a dynamic scale does not explain."""

from __future__ import annotations

import warnings
from typing import Any, Optional

from amp_xla.precision import loss_scale as scales


class LossScaleWarning(UserWarning):
    """A problem with loss scaling that training survives."""


class Monitor:
    """Warnings, once per streak, about a scale at its minimum or a constant one that overflows.

    Plain Python on the host: TensorFlow calls ``skipped`` in the branch that skips, a JAX loop
    calls ``observe`` with a step's results.

    Args:
      spec: the loss scale.
      patience: skipped steps in a row, at the minimum, before it warns.
    """

    def __init__(self, spec: Any, patience: int = 10) -> None:
        self._spec = scales.from_spec(spec)
        self._patience = patience
        self._streak = 0
        self._skipped = 0
        self._applied: Optional[int] = None

    def observe(self, loss_scale: Any, finite: Any) -> None:
        """Note one step.

        Args:
          loss_scale: the loss scale in force during the step, or its value.
          finite: whether the step's gradients were finite.
        """
        if bool(finite):
            self._streak = 0
        else:
            self._skip(float(getattr(loss_scale, "loss_scale", loss_scale)))

    def skipped(self, scale: Any, applied_steps: Any) -> None:
        """Note a skipped step; a larger ``applied_steps`` ends the streak.

        Args:
          scale: in force during the step.
          applied_steps: steps applied so far.
        """
        if self._applied != int(applied_steps):
            self._applied, self._streak = int(applied_steps), 0
        self._skip(float(scale))

    def _skip(self, scale: float) -> None:
        self._skipped += 1
        if not isinstance(self._spec, scales.DynamicLossScale):
            if self._skipped in (1, 10, 100, 1000) or self._skipped % 10000 == 0:
                self._warn(
                    f"non-finite gradients under the constant loss scale {scale:g}: step skipped, "
                    f"{self._skipped} so far. A few are harmless; if they go on, lower the scale "
                    f'or use loss_scale="dynamic"'
                )
            return
        self._streak = self._streak + 1 if scale <= self._spec.minimum else 0
        if self._streak == self._patience:
            self._warn(
                f"the loss scale has been at its minimum, {scale:g}, for {self._streak} steps in a "
                f"row and gradients are still not finite, so scaling is not the cause: search for "
                f"NaN in the data or the model, lower the learning rate, or allow a smaller minimum"
            )

    def _warn(self, message: str) -> None:
        # Attributed to the caller that runs the step.
        warnings.warn(message, LossScaleWarning, stacklevel=5)
