"""The training loop's interface to TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np
from safetensors import SafetensorError

from amp_xla import backend
from amp_xla.backend import configuring, tf
from amp_xla.data.batches.rank_shard import micro_batches
from amp_xla.errors import AmpXlaError
from amp_xla.graph.nodes import upstream
from amp_xla.graph.training_graph import DROPOUT_STEP
from amp_xla.process import durable
from amp_xla.process.progress import note
from amp_xla.training import distributed
from amp_xla.training.checkpoint import MORE, Checkpoint, CheckpointError, fitting
from amp_xla.training.engine import Engine, StepResult
from amp_xla.training.step import FLAG, initialize_variables
from amp_xla.training.variables import Variables, restore_weights

# XLA stops compiling a cluster after this number of compilations with fewer than 50 runs each
# ("megamorphic"; tensorflow/compiler/jit/xla_compilation_cache.cc, 1.15 and 2.x).
MAX_COMPILATIONS = 10


class TensorFlowEngine(Engine):
    """The engine of a TensorFlow job; refuses to start if TensorFlow does not see the GPU."""

    events = True

    def __init__(self, job: Any) -> None:
        configuring.refuse_unseen_gpu(configuring.current().settings.device)
        initialize_variables()
        optimizer = job.step.optimizer
        self.job, self.ranks = job, distributed.current()
        warning = shape_warning(len(job.batches.shapes), job.resolved.settings.xla)
        if warning:
            note(warning)
        self.metric_names = job.step.metric_names
        start = getattr(optimizer, "loss_scale_at_start", None)
        self.smallest_scale = getattr(start, "minimum", None)
        self.micro_batches = getattr(optimizer, "accumulate", 1)
        window = getattr(optimizer, "window", None)
        transient = window.state_variables if window else []  # zero between updates
        self._variables = Variables(
            [v for v in job.variables if not any(v is other for other in transient)]
        )
        self._window, self._micro_step = Variables(transient), Variables(transient[:1])
        self.more_tensors: Callable[[], Dict[str, np.ndarray]] = dict
        names = unrepeatable(job.step.train_op)
        if names:
            others = f" and {len(names) - 1} others draw" if names[1:] else " draws"
            note(
                f"{names[0]}{others} random numbers whose state TensorFlow hides: resuming is not "
                "exact"
            )
        settings = dataclasses.asdict(job.resolved.settings)
        settings["half precision"] = job.resolved.machine_half
        del settings["device"]  # machine_half covers its effect
        self.settings = settings
        self.versions = {
            "tensorflow": backend.tensorflow().__version__,
            "bert4keras": ".".join(map(str, backend.bert4keras_version())),
        }
        self.process = {
            "runtime": backend.kind(),
            "nvidia_fork": backend.is_fork(),
            "gpus": backend.gpus(),
            "parameters": int(sum(v.shape.num_elements() for v in job.step.variables)),
        }

    def step(self, batch: Any, number: int, flag: bool) -> StepResult:
        result: Optional[StepResult] = None
        shards = micro_batches(batch)
        for part, shard in enumerate(shards, number * len(shards)):
            feed = self.job.step.feed(shard)
            if FLAG in feed:
                feed[FLAG] = np.array([flag], np.float32)
            try:
                latest = self.job.step(feed, part)
            except tf.errors.OpError as error:
                if self.ranks.several and "horovod" in str(error).lower():
                    raise self.ranks.lost(error) from error
                raise
            if result is None or math.isfinite(result.rank_loss):
                # Remember the first micro-batch whose loss is not finite, else the last one.
                self.remember(feed, number, part)
            result = latest if result is None else result.then(latest)
        assert result is not None  # a batch has a micro-batch
        return result

    def remember(self, feed: Mapping[str, Any], number: int, part: int) -> None:
        """Remember a micro-batch for ``diagnose``; its number ``part`` determines dropout masks."""
        self.last_batch, self._micro_batch = (number, feed), part

    def first_step_ran(self) -> Optional[Dict[str, Any]]:
        graph = self.job.step.executed
        note(f"first step ran: {graph.describe()}")
        self.job.verify(graph)
        return dataclasses.asdict(graph)

    @property
    def in_window(self) -> int:
        """Number of micro-batches in the sums of an accumulation window; 0 between updates."""
        return int(sum(self._micro_step.snapshot().values()))

    def snapshot(self) -> Mapping[str, np.ndarray]:
        more = {**(self._window.snapshot() if self.in_window else {}), **self.more_tensors()}
        return {**self._variables.snapshot(), **{MORE + n: array for n, array in more.items()}}

    def write_shards(self, folder: Path) -> Optional[Path]:
        tables = self.job.sharded
        return write_shards(tables, self.ranks, folder) if tables else None

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        if weights_only:
            restore_weights(checkpoint, self.job.common(self.job.model.weights))
        else:
            if self.ranks.first:
                self._variables.assign(fitting(checkpoint, self._variables.shapes()))
                more, sums = checkpoint.more_tensors(), self._window.snapshot()
                self._window.assign({n: more.get(n, np.zeros_like(a)) for n, a in sums.items()})
            self.start()
        if self.job.sharded:
            self.job.sharded.read(checkpoint.path, weights_only)

    def start(self) -> None:
        self.ranks.broadcast(self.job.variables)

    def compare(self) -> None:
        if self.ranks.several:
            weights = self.job.common(self.job.step.variables)
            self.ranks.compare([v.op.name for v in weights], backend.session().run(weights))

    def diagnose(self, loss_scale: float) -> Tuple[str, Dict[str, Any]]:
        step, feed = self.last_batch  # the replay uses the current weights
        note(f"replaying the batch of step {step} to find the first non-finite node ...")
        finding = self._first_nonfinite(feed, self._micro_batch, loss_scale)
        if finding is not None:
            return str(finding), finding.to_json()
        text = (
            "in the replay on a CPU all numbers were finite: either another micro-batch of the "
            "update was not finite, or the result depends on the order of additions or on the "
            "GPU's kernels"
        )
        return text, {}

    def _first_nonfinite(self, feed: Mapping[str, Any], micro_batch: int, scale: float) -> Any:
        from amp_xla.diagnose import overflow

        arrays = self.job.step.arrays(feed, micro_batch)
        training = self.job.training_graph()
        values = training.values()
        half = self.job.resolved.half == "float16"
        rewritten = overflow.rewrite(training) if half else None
        return overflow.replay(training, rewritten, values, arrays, micro_batch, float(scale))


def write_shards(tables: Any, ranks: Any, checkpoints: Path) -> Path:
    """Write all ranks' rows into a new folder inside ``checkpoints``; all ranks call it.

    ``tables`` is a ``TableShards``. Rank 0 then moves the files into its checkpoint, whose manifest
    lists them.

    Raises:
      CheckpointError: a rank could not write (raised on all ranks); the folder was removed.
    """
    folder = checkpoints / f"{durable.TEMPORARY}shards"

    def make() -> None:
        if folder.exists():
            durable.remove(folder)
        folder.mkdir()

    def write() -> None:
        if not folder.is_dir():
            raise AmpXlaError(
                f"{folder} does not exist here: put runs/ on a file system that all hosts share"
            )
        tables.write(folder)

    def failure(work: Callable[[], None]) -> str:
        """Return the error message of ``work``, or an empty string."""
        try:
            work()
            return ""
        except (OSError, SafetensorError, AmpXlaError) as error:
            return f"{ranks.world.name}: {error}"

    # The other ranks wait here until rank 0 has made the folder.
    failed = ranks.from_first(lambda: failure(make))
    if not failed:
        failed = "; ".join(filter(None, ranks.all_do(lambda: failure(write))))
    if failed:
        if ranks.first and folder.exists():
            durable.remove(folder)
        raise CheckpointError(f"cannot write the tables of a checkpoint: {failed}")
    return folder


def shape_warning(shapes: int, xla: str) -> str:
    """Return a warning if batches have more shapes than XLA compiles; else an empty string."""
    if xla in ("off", "no_lazy") or shapes <= MAX_COMPILATIONS:
        return ""
    return (
        f"warning: the batches have {shapes} shapes, and XLA stops compiling after "
        f"{MAX_COMPILATIONS}; use fewer (--shapes, or --packed for one) or --xla no_lazy"
    )


_RANDOM_OPS = frozenset(
    ["RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"]
    + ["ParameterizedTruncatedNormal", "Multinomial", "RandomGamma", "RandomShuffle"]
)


def unrepeatable(fetch: Any) -> List[str]:
    """Return the names of operations under ``fetch`` whose random numbers cannot be repeated.

    TensorFlow keeps their state inside the kernel, so a resumed run draws other numbers. This
    project's dropout is not among them.

    Args:
      fetch: an operation or a tensor of a v1 graph.
    """
    return sorted(
        op.name
        for op in upstream([getattr(fetch, "op", fetch)])
        if op.type in _RANDOM_OPS and not op.name.startswith(DROPOUT_STEP)
    )
