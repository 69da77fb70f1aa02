"""Non-finite numbers: skip the update, report the cause, roll back once, stop.

The optimizer skips each update with a NaN or an infinity, so weights stay finite. A few skipped
updates are the price of a loss scale near its limit. Many in a row, or one at the smallest loss
scale, mean that training diverges: the run goes back to the last checkpoint without skipped updates
and continues with the next batches. If it happens again, the run stops.
"""

from __future__ import annotations

import math
from typing import Any, Optional

from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import Checkpoint, newest
from amp_xla.training.engine import StepResult


class TrainingDiverged(AmpXlaError):
    """Loss or gradients stayed non-finite; the message names what was tried."""


class NonFiniteHandler:
    """Decides what happens after a skipped update.

    Args:
      loop: the training loop.
      limit: skipped updates in a row that mean divergence.
      policy: ``skip``, ``report`` (name the cause of the first one) or ``stop``.
    """

    def __init__(self, loop: Any, limit: int, policy: str) -> None:
        self._loop, self._limit, self._policy = loop, limit, policy
        self._reported = False

    def judge(self, result: StepResult) -> None:
        """Act on a skipped update.

        Raises:
          TrainingDiverged: training must stop.
        """
        state, smallest = self._loop.state, self._loop.engine.smallest_scale
        what = f"step {state.step - 1}: loss {result.loss:g} at loss scale {result.loss_scale:g}"
        if self._policy == "stop":
            raise TrainingDiverged(f"{what}, not finite; {self._report(result)}")
        if self._policy == "report" and not self._reported:
            self._reported = True
            note(f"{what}, not finite, skipped; {self._report(result)}")
        in_a_row = state.not_finite_in_a_row
        at_smallest = smallest is not None and result.loss_scale <= smallest
        if in_a_row < self._limit and not at_smallest:
            return
        why = f"{in_a_row} skipped in a row"
        if at_smallest:
            why = "the loss scale is at its smallest"
        if state.rolled_back_at is None and self._roll_back(f"{what}, {why}"):
            return
        again = (
            "there is no checkpoint from before it"
            if state.rolled_back_at is None
            else f"and the run was rolled back at step {state.rolled_back_at} already"
        )
        raise TrainingDiverged(f"{what}: {why}, {again}; {self._report(result)}")

    def _roll_back(self, why: str) -> bool:
        loop, state = self._loop, self._loop.state
        name = loop.engine.ranks.from_first(self._good)
        if name is None:
            return False
        good = Checkpoint(loop.run.checkpoints / name)
        loop.engine.restore(good)
        state.applied = good.loop.applied
        state.not_finite_in_a_row = 0
        state.rolled_back_at = state.step
        note(f"{why}: rolled back to {name}, going on with the batches after step {state.step}")
        loop.save()  # a run killed now must not roll back again
        return True

    def _good(self) -> Optional[str]:
        self._loop.checkpoints.wait()
        good = newest(self._loop.run.checkpoints, good=True)
        return None if good is None else good.path.name

    def _report(self, result: StepResult) -> str:
        ranks = self._loop.engine.ranks
        if ranks.several:  # a replay would need all ranks
            bad = ranks.gather(None if math.isfinite(result.rank_loss) else ranks.world.name)
            names = ", ".join(name for name in bad if name)
            what = f"the loss of {names} is not" if names else "every rank's loss is"
            return f"{what} finite; the same batches on one rank, with --resume, say more"
        try:
            text: str = self._loop.engine.diagnose(self._loop.run.path, result.loss_scale)
            return text
        except Exception as error:
            # The report is optional; the reason to stop must reach the user.
            return f"no report on the cause ({type(error).__name__}: {error})"
