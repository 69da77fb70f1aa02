"""Option group: files of samples with slots."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.data.slots.batches import block_of
from amp_xla.data.slots.built_in import two_packages
from amp_xla.data.slots.lines import Lines
from amp_xla.errors import DataError

_CRITEO_NUMBERS = 13
_BUILT_IN_VALUES = 64


@dataclasses.dataclass(frozen=True)
class SlotFiles:
    """Files to train on and to evaluate on."""

    train: Annotated[Optional[str], MAY_CHANGE] = None
    """training file in Criteo's format, also gzipped; none = built-in"""
    dev: Annotated[Optional[str], MAY_CHANGE] = None
    """dev file, in the same format; needed with --train"""
    numbers: Annotated[Optional[int], within(at_least=0)] = None
    """columns of numbers after the label; none = 13 as in Criteo's files, built-in 0"""
    values: Annotated[Optional[int], within(at_least=1)] = None
    """most values of a slot, separated by spaces; none = 1, built-in 64"""

    def read(self, batch_size: int) -> Tuple[Lines, Lines, int]:
        """Return training lines, dev lines and values per slot.

        Raises:
          DataError: only one file is given, or a line is wrong.
        """
        block = block_of(batch_size)
        if (self.train is None) != (self.dev is None):
            raise DataError("--train and --dev belong together: give both, or neither")
        if self.train is None or self.dev is None:
            names = ("built-in, train", "built-in, dev")
            train, dev = (
                Lines(name, self.numbers or 0, block, text)
                for name, text in zip(names, two_packages())
            )
            return train, dev, self.values or _BUILT_IN_VALUES
        numbers = _CRITEO_NUMBERS if self.numbers is None else self.numbers
        train = Lines(self.train, numbers, block)
        return train, Lines(self.dev, numbers, block, columns=train.columns), self.values or 1
