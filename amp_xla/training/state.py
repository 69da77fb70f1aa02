"""Where a run is: what a checkpoint says besides its tensors."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, List, Optional


@dataclasses.dataclass
class LoopState:
    """Where a run is; all counts from 0. JSON-able, saved with every checkpoint.

    Attributes:
      step: steps tried, applied or skipped.
      epoch, step_in_epoch: name the next batch.
      samples: real samples seen.
      applied: updates the optimizer has made; the learning rate follows it.
      skipped: steps (with accumulation: windows) left out for non-finite numbers.
      not_finite_in_a_row: of these, those since the last update.
      rolled_back_at: step of the one roll-back; None before it.
      best, best_step: the best monitored value so far, and when.
      stale: evaluations since.
      evaluate_due: the evaluation that belongs after ``step`` is still to be done.
      log_sums, log_count: what the next line of metrics.jsonl will be the mean of.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    samples: int = 0
    applied: int = 0
    skipped: int = 0
    not_finite_in_a_row: int = 0
    rolled_back_at: Optional[int] = None
    best: Optional[float] = None
    best_step: int = 0
    stale: int = 0
    evaluate_due: bool = False
    log_sums: List[float] = dataclasses.field(default_factory=list)
    log_count: int = 0

    def recount(self, steps_per_epoch: Callable[[int], int]) -> None:
        """Finds the epoch of ``step`` anew: a run that got longer goes on in one that had ended."""
        left, self.epoch = self.step, 0
        while left and left >= steps_per_epoch(self.epoch):
            left -= steps_per_epoch(self.epoch)
            self.epoch += 1
        self.step_in_epoch = left

    @property
    def best_is_of(self) -> Optional[int]:
        """The step of the best checkpoint; None before the first evaluation."""
        return None if self.best is None else self.best_step

    def judge(self, value: float, higher_is_better: bool) -> bool:
        """Takes note of an evaluation; whether it is the best so far. Any is better than NaN."""
        sign, best = 1.0 if higher_is_better else -1.0, self.best
        if best is None or math.isnan(best) or sign * value > sign * best:
            self.best, self.best_step, self.stale = value, self.step, 0
            return True
        self.stale += 1
        return False
