"""Option group: how many updates pretraining makes, of which sequences, in what pieces."""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.errors import DataError


@dataclasses.dataclass(frozen=True)
class LengthOptions:
    """How much is learned from."""

    steps: Annotated[int, within(1, 10**9)] = 2000
    """updates of the whole run"""
    phase2_length: Annotated[Optional[int], within(at_least=2)] = None
    """tokens a sequence in a second phase: a multiple of the data's, whose sequences are read end
    to end; none = one phase"""
    phase2_share: Annotated[float, within(above=0, below=1)] = 0.1
    """share of the updates, the last ones, that are the second phase"""
    global_batch: Annotated[int, within(at_least=1)] = 16
    """sequences per update, over all ranks"""
    micro_batch: Annotated[int, within(at_least=1)] = 16
    """sequences per micro-batch on each rank, at most; ignored with --accumulate"""

    def plan(self, length: int) -> List[Tuple[int, int]]:
        """(tokens a sequence, updates) of each phase; ``length`` is the prepared text's.

        Raises:
          DataError: a phase is left without an update.
        """
        if self.phase2_length is None:
            return [(length, self.steps)]
        last = round(self.steps * self.phase2_share)
        if not 0 < last < self.steps:
            raise DataError(
                f"--phase2-share {self.phase2_share:g} of --steps {self.steps} leaves a phase "
                f"without an update"
            )
        return [(length, self.steps - last), (self.phase2_length, last)]

    def accumulation(self, given: Optional[int], ranks: int) -> int:
        """Return micro-batches per update on each rank.

        Args:
          given: value of ``--accumulate``; None = as few as ``micro_batch`` allows.
          ranks: world size.
        """
        return given or -(-self.global_batch // (self.micro_batch * ranks))
