"""The training loop's interface to JAX."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Tuple

import jax
import numpy as np
import optax

from amp_xla.jax import processes
from amp_xla.jax.step import State
from amp_xla.process.progress import note
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.engine import Engine, StepResult, fitting, shape_of
from amp_xla.training.evaluation import classification

INPUTS = ("token_ids", "segment_ids", "labels", "weights")


@dataclasses.dataclass
class JaxJob:
    """A JAX job that is built but not started; attributes not listed here are those of ``Job``.

    Attributes:
      state: state before the next step.
      step: function (state, batch) -> (state, result).
      infer: function (model, batch) -> logits.
      batches, dev_batches: batches of all processes; the rows are split over devices.
      settings: as in ``Engine``.
    """

    state: State
    step: Callable[..., Any]
    infer: Callable[..., Any]
    batches: Any
    dev_batches: Any
    classes: int
    assets: Mapping[str, bytes]
    settings: Dict[str, Any]
    identity: Dict[str, str] = dataclasses.field(default_factory=dict)
    export: None = None
    rates: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def engine(self) -> JaxEngine:
        """Print the devices; return the engine that trains the job."""
        kinds = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        note(f"devices: {jax.device_count()} ({jax.default_backend()}: {kinds}), "
             f"processes: {jax.process_count()}")  # fmt: skip
        return JaxEngine(self)

    def evaluate(self) -> Dict[str, float]:
        """Return accuracy, macro-F1 and mean loss of the dev batches."""

        def infer(batch: Any) -> Dict[str, np.ndarray]:
            logits = np.asarray(self.infer(self.state.model, shared(batch)), np.float64)
            top = logits.max(-1, keepdims=True)
            total = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
            return {"logits": logits, "loss": total - logits[range(len(total)), batch["labels"]]}

        return classification(infer, self.dev_batches, self.classes)


def shared(batch: Mapping[str, np.ndarray]) -> Dict[str, jax.Array]:
    """Return the inputs of a batch with their rows split over devices."""
    return processes.share({name: batch[name] for name in INPUTS})


class JaxEngine(Engine):
    """The engine of a JAX job. Its step casts by a policy: there is no graph rewrite to check."""

    metric_names = ("accuracy",)

    def __init__(self, job: JaxJob) -> None:
        self.job, self.ranks, self.settings = job, processes.join(), job.settings
        self.smallest_scale = getattr(job.state.loss_scale, "minimum", None)
        self.versions = {"jax": jax.__version__, "optax": optax.__version__}
        leaves = jax.tree_util.tree_leaves(job.state.model)
        self.process = {
            "runtime": "jax",
            "policy": job.settings["policy"],
            "devices": [device.device_kind for device in jax.devices()],
            "processes": jax.process_count(),
            "parameters": int(sum(np.size(leaf) for leaf in leaves)),
        }

    def step(self, batch: Any, number: int, flag: bool) -> StepResult:
        # The loop's number; the state's counter is reset when the loop rolls back.
        self.last_batch = number, batch
        self.job.state, result = self.job.step(self.job.state, shared(batch))
        flags = self.ranks.gather(flag) if self.ranks.several else ()
        values: StepResult = jax.tree_util.tree_map(lambda leaf: _host(leaf).item(), result)
        return values._replace(flags=tuple(flags))

    def snapshot(self) -> Mapping[str, np.ndarray]:
        # Copies: the next step overwrites donated arrays.
        return {name: np.array(_host(leaf)) for name, leaf in _leaves(self.job.state)}

    def restore(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        if weights_only:
            model = restored(checkpoint, self.job.state.model, ".model")
            self.job.state = self.job.state._replace(model=model)
        else:
            self.job.state = restored(checkpoint, self.job.state)

    def diagnose(self, loss_scale: float) -> Tuple[str, Dict[str, Any]]:
        batch: Mapping[str, np.ndarray] = self.last_batch[1]
        logits = np.asarray(self.job.infer(self.job.state.model, shared(batch)))
        rows = ~np.isfinite(logits).all(-1)
        if rows.any():
            numbers = np.flatnonzero(rows).tolist()[:8]
            text = f"the logits of rows {numbers} are not finite: the forward pass overflows"
        else:
            text = (
                f"the logits are finite: gradients overflow at loss scale {loss_scale:g}; "
                f"lower --learning-rate, or use --policy p=f32,c=f32,o=f32 to see whether it is "
                f"the precision"
            )
        return text, {"loss_scale": loss_scale, "finding": text}


def restored(checkpoint: Checkpoint, like: Any, prefix: str = "") -> Any:
    """Return a tree like ``like`` with the arrays of a checkpoint, on all devices.

    ``like`` is a ``State``, or the part of it at the path ``prefix``, such as ``.model``.

    Raises:
      CheckpointError: an array is missing, extra (if no prefix), or of another dtype or shape.
    """
    named = {prefix + name: leaf for name, leaf in _leaves(like)}
    shapes = {name: shape_of(leaf) for name, leaf in named.items()}
    arrays = fitting(checkpoint, shapes, exactly=not prefix)
    leaves = [arrays[name].astype(leaf.dtype) for name, leaf in named.items()]
    return processes.put(jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves))


def _leaves(tree: Any) -> List[Tuple[str, Any]]:
    """Return (path, leaf) of each array of a tree; a path is e.g. ``.model.bert.tokens``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _host(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf.addressable_data(0))
