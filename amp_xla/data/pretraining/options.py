"""Option group: updates, batch sizes and phases of pretraining."""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

from typing_extensions import Annotated

from amp_xla.config import MAY_CHANGE, within
from amp_xla.errors import DataError


@dataclasses.dataclass(frozen=True)
class LengthOptions:
    """Length of the training."""

    steps: Annotated[int, within(1, 10**9)] = 2000
    """updates in total"""
    phase2_length: Annotated[Optional[int], within(at_least=16)] = None
    """tokens per sequence in a second phase of training; none = only one phase"""
    phase2_share: Annotated[float, within(above=0, below=1)] = 0.1
    """share of the updates in the second phase"""
    global_batch: Annotated[int, within(at_least=1)] = 16
    """sequences per update, over all ranks"""
    micro_batch: Annotated[int, within(at_least=1), MAY_CHANGE] = 16
    """maximum sequences per micro-batch on each rank"""

    def plan(self, length: int) -> List[Tuple[int, int]]:
        """Return (tokens per sequence, updates) per phase; the first has the prepared length."""
        if self.phase2_length is None:
            return [(length, self.steps)]
        last = round(self.steps * self.phase2_share)
        if not 0 < last < self.steps:
            raise DataError(
                f"--phase2-share {self.phase2_share:g} of --steps {self.steps} leaves a phase "
                "without an update; change one of them"
            )
        return [(length, self.steps - last), (self.phase2_length, last)]

    def accumulation(self, ranks: int) -> int:
        """Return the number of micro-batches per update on each rank, as few as possible."""
        return -(-self.global_batch // (self.micro_batch * ranks))
