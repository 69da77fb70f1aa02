"""When numbers stop being finite: skip, look, roll back once, stop.

The optimizer leaves out every update with a NaN or an infinity in it, so weights stay finite. A
few such steps are the price of a loss scale that probes its limit. Many in a row, or one under
the smallest scale there is, are not: then the run goes back to the last checkpoint written
before it began, and on with the batches that follow. If that happens again, it stops.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Optional

from amp_xla.errors import AmpXlaError
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import Checkpoint, newest
from amp_xla.training.step import StepResult


class TrainingDiverged(AmpXlaError):
    """Loss or gradients stayed non-finite; the message says what was tried and where to look."""


class NonFiniteHandler:
    """Judges skipped steps.

    Args:
      loop: the loop; its state, checkpoints and step are used.
      limit: skipped steps in a row that mean trouble.
      policy: ``skip``, ``report`` (name the cause at the first skipped step) or ``stop``.
      diagnose: (feed, step, loss scale) -> text that names where numbers stop being finite.
    """

    def __init__(
        self,
        loop: Any,
        limit: int,
        policy: str,
        diagnose: Optional[Callable[[Any, int, float], str]] = None,
    ) -> None:
        self._loop, self._limit, self._policy, self._diagnose = loop, limit, policy, diagnose
        self._reported = False
        # Only a dynamic scale has a smallest value that it can arrive at.
        self._floor = getattr(loop.step.optimizer.loss_scale_at_start, "minimum", None)

    def judge(self, result: StepResult, feed: Mapping[str, Any], number: int) -> None:
        """Acts on a step that was skipped.

        Raises:
          TrainingDiverged: it is time to stop.
        """
        state = self._loop.state
        what = f"step {state.step - 1}: loss {result.loss:g} at loss scale {result.loss_scale:g}"
        if self._policy == "stop":
            raise TrainingDiverged(f"{what}, not finite; {self._report(feed, number, result)}")
        if self._policy == "report" and not self._reported:
            self._reported = True
            note(f"{what}, not finite, skipped; {self._report(feed, number, result)}")
        in_a_row = state.not_finite_in_a_row
        at_floor = self._floor is not None and result.loss_scale <= self._floor
        if in_a_row < self._limit and not at_floor:
            return
        why = "the loss scale is at its smallest" if at_floor else f"{in_a_row} skipped in a row"
        if state.rolled_back_at is None and self._roll_back(f"{what}, {why}"):
            return
        again = (
            "there is no checkpoint from before it"
            if state.rolled_back_at is None
            else f"and the run was rolled back at step {state.rolled_back_at} already"
        )
        raise TrainingDiverged(f"{what}: {why}, {again}; {self._report(feed, number, result)}")

    def _roll_back(self, why: str) -> bool:
        loop, state = self._loop, self._loop.state
        name = loop.ranks.from_first(self._good)
        if name is None:
            return False
        good = Checkpoint(loop.run.checkpoints / name)
        loop.restore(good)
        state.applied = good.loop.applied
        state.not_finite_in_a_row = 0
        state.rolled_back_at = state.step
        note(f"{why}: rolled back to {name}, going on with the batches after step {state.step}")
        loop.save()  # so that a kill does not bring the trouble back
        return True

    def _good(self) -> Optional[str]:
        self._loop.checkpoints.wait()
        good = newest(self._loop.run.checkpoints, good=True)
        return None if good is None else good.path.name

    def _report(self, feed: Mapping[str, Any], number: int, result: StepResult) -> str:
        ranks = self._loop.ranks
        if ranks.several:  # a replay would need all of them
            bad = ranks.gather(None if math.isfinite(result.own) else ranks.world.name)
            found = [name for name in bad if name]
            where = f"the loss of {', '.join(found)} is not" if found else "every rank's loss is"
            return f"{where} finite; the same batches on one rank, with --resume, say more"
        if self._diagnose is None:
            return "look for NaN in the data, lower the learning rate, or use --loss-scale dynamic"
        try:
            return self._diagnose(feed, number, result.loss_scale)
        except Exception as error:
            # The report is a help; the reason to stop must reach the user without it.
            return f"no report on where it began ({type(error).__name__}: {error})"
