"""The training loop's interface to JAX."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import equinox
import jax
import numpy as np
import optax

from amp_xla.jax import processes
from amp_xla.jax.bert import named
from amp_xla.jax.step import State
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import Checkpoint, fitting, shape_of
from amp_xla.training.engine import StepResult
from amp_xla.training.metrics import classification, confusion

INPUTS = ("token_ids", "segment_ids", "labels", "weights")


@dataclasses.dataclass
class Job:
    """A JAX job that is built and not yet started.

    Attributes:
      state: before the next step.
      step: (state, batch) -> (state, result).
      infer: (model, batch) -> logits.
      batches, dev_batches: whole ones; devices share their rows.
      classes: number of labels.
      assets: file name -> function that writes it into a path.
      settings: values besides the configuration that the numbers depend on.
      identity: fingerprints of the data.
    """

    state: State
    step: Callable[..., Any]
    infer: Callable[..., Any]
    batches: Any
    dev_batches: Any
    classes: int
    assets: Mapping[str, Callable[[str], None]]
    settings: Dict[str, Any]
    identity: Dict[str, str] = dataclasses.field(default_factory=dict)
    export: None = None
    rates: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def evaluate(self) -> Dict[str, float]:
        """Return accuracy, macro-F1 and mean loss of the dev batches."""
        matrix = np.zeros((self.classes, self.classes), np.int64)
        loss = weight = 0.0
        for batch in self.dev_batches.epoch(0):
            logits = np.asarray(self.infer(self.state.model, shared(batch)))
            real = batch["weights"] > 0
            labels, logits = batch["labels"][real], logits[real].astype(np.float64)
            matrix += confusion(labels, logits.argmax(-1), self.classes)
            top = logits.max(-1, keepdims=True)
            total = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
            loss += float((total - logits[np.arange(len(labels)), labels]).sum())
            weight += float(real.sum())
        return classification(matrix, loss, weight)


def shared(batch: Mapping[str, np.ndarray]) -> Dict[str, jax.Array]:
    """Return the inputs of a batch with their rows split over devices."""
    return processes.share({name: batch[name] for name in INPUTS})


class JaxEngine:
    """The ``Engine`` of a JAX job."""

    events = False
    micro_batches = 1
    metric_names: Sequence[str] = ("accuracy",)

    def __init__(self, job: Job) -> None:
        self.job, self.ranks = job, processes.Ranks()
        self.settings: Mapping[str, Any] = job.settings
        smallest = getattr(job.state.loss_scale, "minimum", None)
        self.smallest_scale: Optional[float] = None
        if smallest is not None:
            self.smallest_scale = float(np.asarray(smallest))
        self.versions: Mapping[str, str] = {
            "jax": jax.__version__, "equinox": equinox.__version__, "optax": optax.__version__,
        }  # fmt: skip
        leaves = jax.tree_util.tree_leaves(job.state.model)
        self.process: Mapping[str, Any] = {
            "runtime": "jax",
            "jax": jax.__version__,
            "devices": [device.device_kind for device in jax.devices()],
            "processes": jax.process_count(),
            "parameters": int(sum(np.size(leaf) for leaf in leaves)),
        }
        self.last_batch: Tuple[int, Mapping[str, Any]] = (0, {})

    def step(self, batch: Any, number: int, requests: Tuple[bool, bool]) -> StepResult:
        """Apply one update and wait for its result."""
        # The number is the loop's: a roll-back takes the state's count back.
        self.last_batch = number, batch
        self.job.state, result = self.job.step(self.job.state, shared(batch))
        all_requests: Tuple[float, ...] = ()
        if self.ranks.several:
            all_requests = tuple(
                np.sum(self.ranks.gather([int(flag) for flag in requests]), 0).tolist()
            )
        values = [float(_host(leaf)) for leaf in result]
        loss, hits, finite, norm, rate, scale = values
        applied = int(_host(self.job.state.applied))
        return StepResult(
            loss, rate, scale, bool(finite), norm, applied, (hits,), all_requests, loss
        )

    def first_step_ran(self) -> Optional[Dict[str, Any]]:
        """Return None: the policy is part of the program, so there is nothing to verify."""
        return None

    def shapes(self) -> Dict[str, str]:
        """Return name -> dtype and shape of each array of the state."""
        return _shapes(self.job.state)

    def snapshot(self) -> Mapping[str, np.ndarray]:
        """Return copies of all arrays: the next step overwrites donated ones."""
        return {name: np.array(_host(leaf)) for name, leaf in named(self.job.state)}

    def write_shards(self, folder: Path) -> Optional[Path]:
        """Return None: each process has all arrays."""
        return None

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        """Set all arrays, or the model's, from a checkpoint."""
        if weights_only:
            model = restored(checkpoint, self.job.state.model, ".model")
            self.job.state = self.job.state._replace(model=model)
        else:
            self.job.state = restored(checkpoint, self.job.state)

    def start(self) -> None:
        """Do nothing: each process draws the same initial values."""

    def compare(self) -> None:
        """Do nothing: the arrays are the same on all devices."""

    def diagnose(self, loss_scale: float) -> Tuple[str, Dict[str, Any]]:
        """Name the arrays of the last batch, or the logits, that are not finite."""
        batch: Mapping[str, np.ndarray] = self.last_batch[1]
        wrong = [n for n, a in batch.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
        rows = ~np.isfinite(np.asarray(self.job.infer(self.job.state.model, shared(batch)))).all(-1)
        if wrong:
            text = f"the batch's {', '.join(wrong)} are not finite"
        elif rows.any():
            numbers = np.flatnonzero(rows).tolist()[:8]
            text = f"the logits of rows {numbers} are not finite: the forward pass overflows"
        else:
            text = (
                f"batch and logits are finite: gradients overflow at loss scale {loss_scale:g}; "
                f"lower --learning-rate, or use --policy p=f32,c=f32,o=f32 to see whether it is "
                f"the precision"
            )
        return text, {"loss_scale": loss_scale, "finding": text}


class Jax:
    """The parts of a start that depend on the framework; see ``launch.TensorFlow``."""

    @staticmethod
    def join(config: Any, first_size: int = 0) -> processes.Ranks:
        """Meet the other processes."""
        processes.join()
        return processes.Ranks()

    @staticmethod
    def engine(job: Job) -> JaxEngine:
        """Return what trains the job, and print the devices in use."""
        kinds = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        note(f"{jax.device_count()} devices ({jax.default_backend()}: {kinds}), "
             f"{jax.process_count()} processes")  # fmt: skip
        return JaxEngine(job)


def restored(checkpoint: Checkpoint, like: Any, prefix: str = "") -> Any:
    """Return a tree like ``like`` with the arrays of a checkpoint, on all devices.

    Args:
      checkpoint: where to read.
      like: a ``State``, or a part of one.
      prefix: name of that part in the state, such as ``.model``.

    Raises:
      CheckpointError: an array is missing or of another shape.
    """
    arrays = fitting(checkpoint, _shapes(like, prefix), exactly=not prefix)
    leaves = [arrays[prefix + name].astype(leaf.dtype) for name, leaf in named(like)]
    return processes.put(jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves))


def _shapes(tree: Any, prefix: str = "") -> Dict[str, str]:
    return {prefix + name: shape_of(leaf) for name, leaf in named(tree)}


def _host(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf.addressable_data(0))
