"""The interface between the training loop and TensorFlow or JAX. Imports neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla.training.checkpoint import Checkpoint, CheckpointError
from amp_xla.training.distributed import Ranks


class StepResult(NamedTuple):
    """Results of one training step, over all ranks.

    Attributes:
      loss: unscaled.
      loss_scale: loss scale during the step.
      finite: False if loss or gradients were not finite; see ``Engine.skips``.
      applied: updates so far, including this one.
      metrics: values in the order of ``Engine.metric_names``.
      flags: the values that the ranks passed to ``Engine.step`` as ``flag``. Some engines return
        only the sum of these. Empty with one rank.
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
        """Combine this result with ``later``, the result of the batch's next micro-batch."""
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
      metric_names: names of ``StepResult.metrics``.
      smallest_scale: lower limit of a dynamic loss scale; None for a constant one.
      skips: whether updates that are not finite are skipped; Keras' optimizers apply them.
      micro_batches: number of micro-batches per update and rank.
      settings: values outside the configuration that affect the results.
      versions: name -> version of each library that affects the results.
      process: devices and number of parameters, for ``run.json``.
      events: whether TensorBoard events are written.
      last_batch: number of the last step, and the arrays of its batch.
    """

    job: Any
    ranks: Ranks
    metric_names: Sequence[str] = ()
    smallest_scale: Optional[float] = None
    skips = True
    micro_batches = 1
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    process: Mapping[str, Any]
    events = False
    last_batch: Tuple[int, Mapping[str, Any]] = (0, {})

    def step(self, batch: Any, number: int, flag: bool) -> StepResult:
        """Apply one update, computed from a batch or from this rank's share of it.

        ``number``: number of the step in the whole run; ``flag``: whether this rank has to stop or
        to save.
        """
        raise NotImplementedError

    def first_step_ran(self) -> Optional[Dict[str, Any]]:
        """Verify the graph of the first step, and return the content of ``executed.json``.

        None = this engine has no such graph, so the file is not written.
        """
        return None

    def snapshot(self) -> Mapping[str, np.ndarray]:
        """Return the current values of all tensors that a checkpoint stores, in host memory."""
        raise NotImplementedError

    def write_shards(self, folder: Path) -> Optional[Path]:
        """Write this rank's rows of sharded tables to a new subfolder of ``folder``; return it.

        All ranks call it. Rank 0 then moves the files into its checkpoint. Without sharded tables,
        nothing is written and the result is None.

        Raises:
          CheckpointError: a rank could not write (raised on all ranks); the subfolder was removed.
        """
        return None

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        """Set all tensors, or only the model's weights, from a checkpoint; all ranks call it.

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


def shape_of(array: Any) -> str:
    """Return dtype and shape as a text such as ``float32[21128,768]``."""
    dtype = getattr(array.dtype, "base_dtype", array.dtype)
    return f"{dtype.name}[{','.join(str(int(size)) for size in array.shape)}]"


def fitting(
    checkpoint: Checkpoint, shapes: Mapping[str, str], exactly: bool = True, slot: str = ""
) -> Dict[str, np.ndarray]:
    """Return a checkpoint's tensors, by name, for the variables in ``shapes``.

    Args:
      shapes: name -> dtype and shape, as ``shape_of`` returns them.
      exactly: whether further tensors in the checkpoint are an error.
      slot: name of an optimizer slot. If the checkpoint has this slot of a variable, the slot's
        tensor is returned in place of the variable's; '' = no slot.

    Raises:
      CheckpointError: a tensor is missing, unknown, not finite, or of another dtype or shape.
    """
    tensors = checkpoint.tensors()
    tensors.update({n: tensors[f"{n}/{slot}"] for n in shapes if f"{n}/{slot}" in tensors})
    stored = {name: shape_of(array) for name, array in tensors.items()}
    needed = {name: shape.replace("bfloat16", "float32") for name, shape in shapes.items()}
    wrong = [
        f"tensor {name}: found {stored.get(name, 'none')}, needed {shapes.get(name, 'none')}"
        for name in sorted({*stored, *needed} if exactly else needed)
        if stored.get(name) != needed.get(name)
    ]
    if wrong:
        rest = f"; and {len(wrong) - 3} more tensors" if len(wrong) > 3 else ""
        raise CheckpointError(
            f"{checkpoint.path} is of another model and cannot be used: {'; '.join(wrong[:3])}"
            f"{rest}"
        )
    return {name: tensors[name] for name in shapes}
