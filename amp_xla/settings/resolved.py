"""What the settings mean on the machine at hand: decided once, handed to who needs it."""

from __future__ import annotations

import dataclasses
from typing import Optional

from amp_xla.settings.wanted import LossScaleSetting, Settings


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Made by ``amp_xla.setup.resolve``.

    Attributes:
      settings: what was asked for.
      machine_half: the half precision that this machine's TensorFlow can train in, ``float16`` or
        ``bfloat16``; None = float32 only.
      why: one clause on how that was found.
    """

    settings: Settings
    machine_half: Optional[str]
    why: str

    @property
    def half(self) -> Optional[str]:
        """The dtype that matrix products are rounded to in this run; None = none is."""
        return self.machine_half if self.settings.precision == "amp" else None

    @property
    def loss_scale(self) -> LossScaleSetting:
        """What the loss is multiplied by: a number, or ``dynamic``."""
        return self.settings.effective_loss_scale(self.machine_half)

    def describe(self) -> str:
        """One line: what was asked for, and what it means here."""
        line = self.settings.describe()
        if self.settings.precision == "amp":
            meaning = f"{self.half} where safe" if self.half else "trains in float32 here"
            line += f" -> {meaning} ({self.why})"
        return line
