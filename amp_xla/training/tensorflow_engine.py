"""The training loop's interface to TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.batches.rank_shard import micro_batches
from amp_xla.diagnose import overflow
from amp_xla.graph import virtual_gpu
from amp_xla.process.progress import note
from amp_xla.training import distributed
from amp_xla.training.checkpoint import Checkpoint, fitting
from amp_xla.training.engine import StepResult
from amp_xla.training.job import unrepeatable
from amp_xla.training.shards import write_shards
from amp_xla.training.step import REQUESTS, initialize_variables
from amp_xla.training.variables import Variables, restore_weights

# XLA gives a cluster up that is compiled more often than this, with fewer than 50 runs each
# ("megamorphic"; tensorflow/compiler/jit/xla_compilation_cache.cc, 1.15 and 2.x).
MAX_COMPILATIONS = 10


class TensorFlowEngine:
    """The ``Engine`` of a TensorFlow job.

    Args:
      job: ``amp_xla.training.job.Job``.
    """

    events = True

    def __init__(self, job: Any) -> None:
        initialize_variables()
        optimizer = job.step.optimizer
        self.job, self.ranks = job, distributed.current()
        warning = shape_warning(len(job.batches.shapes), job.resolved.settings.xla)
        if warning:
            note(warning)
        self.metric_names: Sequence[str] = job.step.metric_names
        self.smallest_scale: Optional[float] = getattr(
            getattr(optimizer, "loss_scale_at_start", None), "minimum", None
        )
        self.micro_batches: int = getattr(optimizer, "accumulate", 1)
        window = getattr(optimizer, "window", None)
        transient = window.state_variables if window else []  # zero between updates
        self._variables = Variables(
            [v for v in job.variables if not any(v is other for other in transient)]
        )
        names = unrepeatable(job.step.train_op)
        if names:
            more = f" and {len(names) - 1} others draw" if names[1:] else " draws"
            note(
                f"{names[0]}{more} random numbers whose state TensorFlow hides: resuming is not "
                "exact"
            )
        self.last_batch: Tuple[int, Mapping[str, Any]] = (0, {})
        settings = dataclasses.asdict(job.resolved.settings)
        settings["half precision"] = job.resolved.machine_half
        del settings["device"]  # the line above has what matters of it
        self.settings: Mapping[str, Any] = settings
        bert4keras = ".".join(map(str, backend.bert4keras_version()))
        version: str = backend.tensorflow().__version__
        self.versions: Mapping[str, str] = {"TensorFlow": version, "bert4keras": bert4keras}
        self.process: Mapping[str, Any] = {
            "runtime": backend.kind(),
            "tensorflow": version,
            "nvidia_fork": backend.is_fork(),
            "bert4keras": bert4keras,
            "gpus": backend.gpus(),
            "parameters": int(sum(v.shape.num_elements() for v in job.step.variables)),
        }

    def step(self, batch: Any, number: int, requests: Tuple[bool, bool]) -> StepResult:
        """Compute this rank's micro-batches of a batch, and apply the update."""
        result: Optional[StepResult] = None
        shards = micro_batches(batch)
        for part, shard in enumerate(shards, number * len(shards)):
            feed = self.job.step.feed(shard)
            if REQUESTS in feed:
                feed[REQUESTS] = np.array(requests, np.float32)
            try:
                latest = self.job.step(feed, part)
            except tf.errors.OpError as error:
                if self.ranks.several and "horovod" in str(error).lower():
                    raise self.ranks.lost(error) from error
                raise
            if result is None or math.isfinite(result.rank_loss):
                # The first micro-batch whose loss is not finite, else the last.
                self.remember(feed, number, part)
            result = latest if result is None else result.then(latest)
        assert result is not None  # a batch has a micro-batch
        return result

    def remember(self, feed: Mapping[str, Any], number: int, part: int) -> None:
        """Keep what ``diagnose`` replays.

        Args:
          feed: name -> array of the step's inputs.
          number: number of the step.
          part: number of the micro-batch, which the dropout masks depend on.
        """
        self.last_batch, self._micro_batch = (number, feed), part

    def first_step_ran(self) -> Optional[Dict[str, Any]]:
        """Count the executed graph and compare it with the settings."""
        graph = self.job.step.executed
        note(f"first step ran: {graph.describe()}")
        self.job.verify(graph)
        return dataclasses.asdict(graph)

    def shapes(self) -> Dict[str, str]:
        """Return name -> dtype and shape of each variable, tables with all their rows."""
        sharded = self.job.sharded.shapes() if self.job.sharded else {}
        return {**self._variables.shapes(), **sharded}

    def snapshot(self) -> Mapping[str, np.ndarray]:
        """Return the variables that are the same on each rank."""
        return self._variables.snapshot()

    def write_shards(self, folder: Path) -> Optional[Path]:
        """Write this rank's rows of tables; return the folder of all ranks' files."""
        return write_shards(self.job.sharded, self.ranks, folder) if self.job.sharded else None

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        """Set the variables of all ranks from a checkpoint."""
        if weights_only:
            restore_weights(checkpoint, self.job.common(self.job.model.weights))
        else:
            if self.ranks.first:
                self._variables.assign(fitting(checkpoint, self._variables.shapes()))
            self.start()
        if self.job.sharded:
            self.job.sharded.read(checkpoint.path, weights_only)

    def start(self) -> None:
        """Broadcast rank 0's variables to all ranks."""
        self.ranks.broadcast(self.job.variables)

    def compare(self) -> None:
        """Raise RanksDiffer unless all ranks have the same weights."""
        if self.ranks.several:
            weights = self.job.common(self.job.step.variables)
            self.ranks.compare([v.op.name for v in weights], backend.session().run(weights))

    def diagnose(self, loss_scale: float) -> Tuple[str, Dict[str, Any]]:
        """Replay ``last_batch`` on a CPU with the current weights; name the first bad node."""
        step, feed = self.last_batch
        note(f"replaying the batch of step {step} to find the first non-finite node ...")
        finding = self._first_nonfinite(feed, self._micro_batch, loss_scale)
        if finding is not None:
            return str(finding), finding.to_json()
        text = (
            "the replay on a CPU was finite: an earlier micro-batch of the same update was not, or "
            "it depends on the order of additions or on the GPU's kernels"
        )
        return text, {}

    def _first_nonfinite(self, feed: Mapping[str, Any], micro_batch: int, scale: float) -> Any:
        arrays = self.job.step.arrays(feed, micro_batch)
        training = self.job.training_graph()
        values = training.values()
        rewritten = None
        if self.job.resolved.half == "float16":
            fetches = overflow.fetches(training)
            rewritten = virtual_gpu.rewrite(training.export(fetches), fetches)
        return overflow.replay(training, rewritten, values, arrays, micro_batch, float(scale))


def shape_warning(shapes: int, xla: str) -> str:
    """Return a warning if batches have more shapes than XLA compiles; else an empty string."""
    if xla in ("off", "no_lazy") or shapes <= MAX_COMPILATIONS:
        return ""
    return (
        f"warning: the batches have {shapes} shapes, and XLA stops compiling after "
        f"{MAX_COMPILATIONS}; use fewer (--shapes, or --packed for one) or --xla no_lazy"
    )
