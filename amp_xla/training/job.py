"""A recipe's job before training, and the TensorFlow engine that trains it."""

from __future__ import annotations

import dataclasses
import math
import os
import random
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from safetensors import SafetensorError

from amp_xla import backend
from amp_xla.backend import compiled, configuring, keras, tf
from amp_xla.data.batches.protocol import BatchSource, micro_batches, whole
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed, training_graph
from amp_xla.graph.nodes import upstream
from amp_xla.graph.training_graph import DROPOUT_STEP
from amp_xla.models import derivatives, dropout, fused
from amp_xla.process import durable
from amp_xla.process.progress import note
from amp_xla.settings import AUTO, Precision
from amp_xla.training import distributed
from amp_xla.training.checkpoint import MORE, Checkpoint, CheckpointError
from amp_xla.training.engine import Engine, StepResult, fitting
from amp_xla.training.state import WINDOW_ROWS, XLA_LENGTHS
from amp_xla.training.step import FLAG, TrainStep, Variables, initialize_variables, restore_weights

# XLA stops compiling a cluster after more compilations than this, with fewer than 50 runs each. In
# tensorflow/compiler/jit: xla_compilation_cache.cc (1.15), device_compilation_profiler.cc (2.17).
MAX_COMPILATIONS = 10


@dataclasses.dataclass(frozen=True)
class Job:
    """Parts of a recipe, to be trained, inspected, rehearsed or timed.

    Attributes:
      model: the Keras model in training mode.
      evaluate: returns dev metrics by name.
      assets: file name -> content of the files needed for prediction besides the weights.
      identity: hashes of the data, e.g. ``{"train": dataset.fingerprint()}``, compared on resume.
      resolved: precision, XLA mode and loss scale of the model.
      export: writes the weights for other programs into the folder given to it; called with the
        run folder after each evaluation that was the best so far.
      rates: name in the log -> function (step) -> units per sample, e.g. FLOPs; the loop multiplies
        the result by samples per second.
      sharded: ``TableShards`` of which each rank has some rows; None = every rank has all
        variables.
    """

    model: Any
    step: TrainStep
    batches: BatchSource
    evaluate: Callable[[], Mapping[str, float]]
    assets: Mapping[str, bytes]
    identity: Mapping[str, str]
    resolved: Precision
    export: Optional[Callable[[str], None]] = None
    rates: Dict[str, Callable[[int], float]] = dataclasses.field(default_factory=dict)
    sharded: Optional[Any] = None

    def engine(self) -> TensorFlowEngine:
        """Print the settings; return the engine that trains the job."""
        note(f"settings: {self.resolved.describe()}")
        return TensorFlowEngine(self)

    @property
    def variables(self) -> List[Any]:
        """All variables except sharded tables: weights, optimizer slots, counters, loss scale."""
        return self.common(tf.global_variables())

    def common(self, variables: Sequence[Any]) -> List[Any]:
        """Return the ``variables`` that are the same on each rank: all but sharded tables."""
        sharded = {id(v) for v in self.sharded.variables()} if self.sharded else set()
        return [v for v in variables if id(v) not in sharded]

    def training_graph(self) -> training_graph.TrainingGraph:
        """Return the graph of the training step."""
        return training_graph.from_step(self.step, self.model)

    def verify(self, graph: executed.ExecutedGraph) -> None:
        """Raise NothingConvertedError or UnsupportedError if AMP or XLA did not take effect."""
        chosen, here = self.resolved.settings, self.resolved
        # A run for which ``auto`` turned XLA on may go on without it.
        xla = AUTO if here.choice is not None and chosen.xla == "on" else chosen.xla
        executed.verify(graph, chosen.precision, here.machine_half, here.reason, xla)


class TensorFlowEngine(Engine):
    """The engine of a TensorFlow job; refuses to start if TensorFlow does not see the GPU."""

    events = True

    def __init__(self, job: Any) -> None:
        configuring.refuse_unseen_gpu(configuring.current().settings.device)
        fused.verify(job.resolved, derivatives.attention)
        initialize_variables()
        optimizer = job.step.optimizer
        self.job, self.ranks = job, distributed.current()
        shapes, xla = len(job.batches.shapes), job.resolved.settings.xla
        if xla not in ("off", "no_lazy") and shapes > MAX_COMPILATIONS:
            note(
                f"warning: the batches have {shapes} shapes, but XLA stops compiling after "
                f"{MAX_COMPILATIONS}; use fewer shapes (--shapes N, or --packed for a single one), "
                f"or --xla no_lazy"
            )
        if xla != "off" and any(compiled.programs()):
            note(
                "XLA's programs are kept for the next start, unless AMP_XLA_CACHE=off; messages "
                "`Error parsing text-format` are harmless"
            )
        self.metric_names = job.step.metric_names
        start = getattr(optimizer, "loss_scale_at_start", None)
        self.smallest_scale = getattr(start, "minimum", None)
        self.skips = hasattr(optimizer, "gradients_finite")
        self.micro_batches = getattr(optimizer, "accumulate", 1)
        window = getattr(optimizer, "window", None)
        transient = window.state_variables if window else []  # zero between updates
        self.variables = Variables(
            [v for v in job.variables if not any(v is other for other in transient)]
        )
        self._window, self._micro_step = Variables(transient), Variables(transient[:1])
        names = unrepeatable(job.step.train_op)
        if names:
            subject = f" and {len(names) - 1} others draw" if names[1:] else " draws"
            note(
                f"{names[0]}{subject} random numbers whose state TensorFlow hides: resuming is not "
                "exact"
            )
        settings = dataclasses.asdict(job.resolved.settings)
        settings["half precision"] = job.resolved.machine_half
        settings[dropout.MASKS] = dropout.kind()
        del settings["device"], settings["cache"]  # machine_half covers the effect of the first
        if job.resolved.choice is not None and job.resolved.choice.lengths:
            settings[XLA_LENGTHS] = job.resolved.choice.lengths
        batches: Any = whole(job.batches)
        if hasattr(batches, "group"):
            settings[WINDOW_ROWS] = [batches.rows, batches.group]
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
            shard = {**shard, FLAG: np.array([flag], np.float32)}
            try:
                latest = self.job.step(shard, part)
            except tf.errors.OpError as error:
                if self.ranks.several and "horovod" in str(error).lower():
                    raise self.ranks.lost(error) from error
                raise
            if result is None or math.isfinite(result.rank_loss):
                # Remember the first micro-batch whose loss is not finite, else the last one.
                self.remember(shard, number, part)
            result = latest if result is None else result.then(latest)
        assert result is not None  # a batch has a micro-batch
        return result

    def remember(self, feed: Mapping[str, Any], number: int, part: int) -> None:
        """Remember a micro-batch of step ``number`` for ``diagnose``.

        ``part`` is the number that determines the micro-batch's dropout masks.
        """
        self.last_batch, self._micro_batch = (number, feed), part

    def first_step_ran(self) -> Optional[Dict[str, Any]]:
        graph, resolved = self.job.step.executed, self.job.resolved
        right = "" if graph.half_nodes or resolved.half else f", as expected for {resolved.summary}"
        note(f"first step ran: {graph.describe()}{right}")
        compiled.seal()
        self.job.verify(graph)
        return dataclasses.asdict(graph)

    @property
    def in_window(self) -> int:
        """Number of micro-batches accumulated since the last update; 0 right after an update."""
        return int(sum(self._micro_step.snapshot().values()))

    def snapshot(self) -> Mapping[str, np.ndarray]:
        sums = self._window.snapshot() if self.in_window else {}
        return {**self.variables.snapshot(), **{MORE + n: array for n, array in sums.items()}}

    def write_shards(self, folder: Path) -> Optional[Path]:
        tables, ranks = self.job.sharded, self.ranks
        if not tables:
            return None
        shards = folder / f"{durable.TEMPORARY}shards"

        def write() -> None:
            if not shards.is_dir():
                raise AmpXlaError(
                    f"{shards} does not exist here: put runs/ on a file system that all hosts share"
                )
            tables.write(shards)

        def failure(work: Callable[[], None]) -> str:
            """Call ``work``; return its error message, or an empty string."""
            try:
                work()
                return ""
            except (OSError, SafetensorError, AmpXlaError) as error:
                return f"{ranks.world.name}: {error}"

        # The other ranks wait here until rank 0 has made the folder.
        failed = ranks.from_first(lambda: failure(shards.mkdir))
        if not failed:
            failed = "; ".join(filter(None, ranks.all_do(lambda: failure(write))))
        if failed:
            if ranks.first and shards.exists():
                durable.remove(shards)
            raise CheckpointError(f"cannot write the tables of a checkpoint: {failed}")
        return shards

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        if weights_only:
            restore_weights(checkpoint, self.job.common(self.job.model.weights))
        else:
            if self.ranks.first:
                self.variables.assign(fitting(checkpoint, self.variables.shapes()))
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
        if fused.batch():
            return "no replay on a CPU, because cuDNN's attention needs a GPU", {}
        step, feed = self.last_batch  # the replay uses the current weights
        note(f"replaying the batch of step {step} to find the first non-finite node ...")
        from amp_xla.diagnose import overflow

        arrays, number = self.job.step.arrays(feed, self._micro_batch), self._micro_batch
        training = self.job.training_graph()
        values = training.values()
        half = self.job.resolved.half == "float16"
        rewritten = overflow.rewrite(training) if half else None
        finding = overflow.replay(training, rewritten, values, arrays, number, float(loss_scale))
        if finding is not None:
            return str(finding), finding.to_json()
        return (
            "in the replay on a CPU all numbers were finite: either another micro-batch of the "
            "update was not finite, or the result depends on the order of additions or on the "
            "GPU's kernels"
        ), {}


_RANDOM_OPS = frozenset(
    ["RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"]
    + ["ParameterizedTruncatedNormal", "Multinomial", "RandomGamma", "RandomShuffle"]
)


def unrepeatable(fetch: Any) -> List[str]:
    """Return the names of ``fetch``'s operations whose random numbers cannot be repeated.

    TensorFlow keeps the state of these numbers inside the kernel, so a resumed run draws other
    numbers. This project's dropout is not among these operations.
    """
    return sorted(
        op.name
        for op in upstream([getattr(fetch, "op", fetch)])
        if op.type in _RANDOM_OPS and not op.name.startswith(DROPOUT_STEP)
    )


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, TensorFlow's graph and Keras' generator, if Keras has one."""
    os.environ.setdefault("PYTHONHASHSEED", str(seed))  # for worker processes
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.set_random_seed(seed)
    setter = getattr(keras.utils, "set_random_seed", None)
    if setter is not None:
        setter(seed)
        tf.set_random_seed(seed)
