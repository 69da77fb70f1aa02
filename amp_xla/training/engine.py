"""The interface between the training loop and TensorFlow or JAX. Imports neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.distributed import Ranks


class StepResult(NamedTuple):
    """Results of one training step, over all ranks.

    Attributes:
      loss: unscaled.
      loss_scale: loss scale during the step.
      finite: False if the update was skipped.
      applied: updates so far, including this one.
      metrics: values in the order of ``Engine.metric_names``.
      flags: the argument ``flag`` of ``Engine.step`` of each rank, or one element, their sum; ()
        with one rank.
      rank_loss: loss of this rank's samples alone.
    """

    loss: float
    learning_rate: float
    loss_scale: float
    finite: bool
    gradient_norm: float
    applied: int
    metrics: Tuple[float, ...]
    flags: Tuple[float, ...] = ()
    rank_loss: float = 0.0

    def then(self, later: StepResult) -> StepResult:
        """Add the result of the next micro-batch of the same batch."""
        return later._replace(
            loss=self.loss + later.loss,
            finite=self.finite and later.finite,
            metrics=tuple(a + b for a, b in zip(self.metrics, later.metrics)),
            rank_loss=self.rank_loss + later.rank_loss,
        )


class Engine:
    """A framework that trains a job.

    Attributes:
      job: batches, evaluation, files, data identity; see ``amp_xla.training.job.Job``.
      ranks: processes that train together.
      metric_names: names of ``StepResult.metrics``.
      smallest_scale: lower limit of a dynamic loss scale; None for a constant one.
      micro_batches: number of micro-batches per update and rank.
      settings: values outside the configuration that affect the results.
      versions: name -> version of each library that affects the results.
      process: devices and number of parameters, for ``run.json``.
      events: whether TensorBoard events are written.
      last_batch: number of the last step, and the arrays that were fed in it.
    """

    job: Any
    ranks: Ranks
    metric_names: Sequence[str] = ()
    smallest_scale: Optional[float] = None
    micro_batches = 1
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    process: Mapping[str, Any]
    events = False
    last_batch: Tuple[int, Mapping[str, Any]] = (0, {})

    def step(self, batch: Any, number: int, flag: bool) -> StepResult:
        """Apply one update.

        Args:
          batch: a whole batch, or this rank's share of it.
          number: number of the step, from 0 over the whole run.
          flag: whether this rank has to stop or to save.
        """
        raise NotImplementedError

    def first_step_ran(self) -> Optional[Dict[str, Any]]:
        """Verify the graph of the first step; return the content of ``executed.json``."""
        return None

    def snapshot(self) -> Mapping[str, np.ndarray]:
        """Return all tensors of a checkpoint, in host memory."""
        raise NotImplementedError

    def write_shards(self, folder: Path) -> Optional[Path]:
        """Write sharded tables (each rank has some rows) into a new folder inside ``folder``."""
        return None

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        """Set all tensors, or the model's weights, from a checkpoint; all ranks call it.

        Raises:
          AmpXlaError: the checkpoint has other tensors, or tensors of another dtype or shape.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Give all ranks the same initial values."""

    def compare(self) -> None:
        """Raise RanksDiffer unless all ranks have the same weights."""

    def diagnose(self, loss_scale: float) -> Tuple[str, Dict[str, Any]]:
        """Return why the last step was not finite, as text and as JSON."""
        raise NotImplementedError
