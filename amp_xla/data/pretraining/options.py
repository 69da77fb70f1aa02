"""Option group: how many updates pretraining makes, of which sequences, in what pieces."""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

from typing_extensions import Annotated

from amp_xla.config import within
from amp_xla.errors import DataError

_MICRO_BATCH = 16


@dataclasses.dataclass(frozen=True)
class AmountOptions:
    """How much is learned from."""

    steps: Annotated[int, within(1, 10**9)] = 2000
    """updates of the whole run"""
    phase2_length: Annotated[Optional[int], within(at_least=2)] = None
    """tokens a sequence in a second phase: a multiple of the data's, whose sequences are read end
    to end; none = one phase"""
    phase2_share: Annotated[float, within(above=0, below=1)] = 0.1
    """share of the updates, the last ones, that are the second phase"""
    global_batch: Annotated[int, within(at_least=1)] = 16
    """sequences an update, all ranks together; micro_batch and ranks do not change it"""
    micro_batch: Annotated[int, within(at_least=1)] = _MICRO_BATCH
    """sequences a rank holds in memory at once; global_batch is made of whole ones, or cut into
    as many micro-batches as accumulate says"""

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
        """Micro-batches an update; ``ranks`` share each of them.

        Args:
          given: what ``--accumulate`` says; None = it follows from the batches.

        Raises:
          DataError: the global batch is not made of so many.
        """
        together = min(self.micro_batch * ranks, self.global_batch)
        if given is not None:
            fits = self.micro_batch in (_MICRO_BATCH, self.global_batch / given / ranks)
            if self.global_batch % (given * ranks) or not fits:
                raise DataError(
                    f"--accumulate {given} x {ranks} ranks: --global-batch {self.global_batch} is "
                    f"not so many micro-batches of --micro-batch {self.micro_batch} sequences; "
                    f"leave the latter out, or take another --global-batch"
                )
            return given
        if self.global_batch % together:
            raise DataError(
                f"--global-batch {self.global_batch} is not made of whole micro-batches: "
                f"{self.micro_batch} sequences x {ranks} ranks = {together}"
            )
        return self.global_batch // together
