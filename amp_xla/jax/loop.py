"""The training loop for JAX: the host runs ahead and looks at numbers only where it logs.

Order of batches, state, run folder, metrics and stops are those of ``amp_xla.training.loop``.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

import jax
import numpy as np

from amp_xla.data.batches.protocol import sample_count
from amp_xla.errors import AmpXlaError
from amp_xla.jax import checkpoints, processes
from amp_xla.jax.step import State
from amp_xla.process.progress import Progress, note
from amp_xla.process.stopping import SignalWatch
from amp_xla.training.checkpoint_writer import CheckpointWriter
from amp_xla.training.metrics import MetricsLog, accuracy, confusion, macro_f1
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder
from amp_xla.training.state import LoopState

FED = ("token_ids", "segment_ids", "labels", "weights")


@dataclasses.dataclass
class Job:
    """What a JAX recipe hands to the loop.

    Attributes:
      state: before the first step.
      step: (state, batch) -> (state, result).
      infer: (model, batch) -> logits.
      batches, dev_batches: whole ones; the loop shares their rows among devices.
      classes: number of labels.
      assets: file name -> function that writes it into a path.
      settings: what its numbers depend on besides the config: device, policy.
      identity: what the data are.
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

    def evaluate(self, model: Any) -> Dict[str, float]:
        """Accuracy, macro-F1 and mean loss of the dev batches."""
        matrix = np.zeros((self.classes, self.classes), np.int64)
        loss = weight = 0.0
        for batch in self.dev_batches.epoch(0):
            logits = np.asarray(self.infer(model, _shared(batch)))
            real = batch["weights"] > 0
            labels, logits = batch["labels"][real], logits[real].astype(np.float64)
            matrix += confusion(labels, logits.argmax(-1), self.classes)
            top = logits.max(-1, keepdims=True)
            total = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
            loss += float((total - logits[np.arange(len(labels)), labels]).sum())
            weight += float(real.sum())
        return {
            "accuracy": accuracy(matrix),
            "macro_f1": macro_f1(matrix),
            "loss": loss / max(weight, 1.0),
        }


def _shared(batch: Any) -> Dict[str, jax.Array]:
    return processes.share({name: batch[name] for name in FED})


class Ranks(NamedTuple):
    """What the launch asks of them."""

    first: bool


class Loop:
    """Trains until the epochs are over, patience ends, or a signal asks to stop.

    Args:
      run: the run folder.
      job: what trains.
      writer: where state goes.
      options: see ``LoopOptions``.
      asked: see ``RunOptions``.
      identity: goes into every checkpoint.
    """

    def __init__(
        self,
        run: RunFolder,
        job: Job,
        writer: CheckpointWriter,
        options: LoopOptions,
        asked: RunOptions,
        identity: Dict[str, Any],
    ) -> None:
        self.run, self.job, self.checkpoints, self.options = run, job, writer, options
        self.asked, self.identity = asked, identity
        self.state, self.arrays = LoopState(), job.state
        self.ranks = Ranks(processes.first())
        self.saved_at: Optional[int] = None
        self._log: Optional[MetricsLog] = None
        self._due = False

    def train(self, watch: SignalWatch) -> LoopState:
        """Runs to the end; returns the final state, which is on disk by then.

        Raises:
          Stopped: a signal came; a checkpoint was written first.
          AmpXlaError: a checkpoint could not be written, or numbers stayed non-finite.
        """
        state = self.state
        if self.ranks.first:
            after = state.step if self.run.again else None
            self._log = MetricsLog(self.run.path, after, events=False)
        steps = sum(self.job.batches.steps_per_epoch(e) for e in range(self.options.epochs))
        self.progress = Progress(steps, state.step)
        self._saved_when = time.monotonic()
        try:
            if state.evaluate_due:
                self._evaluate()
            while not self._over():
                self._epoch(watch)
        finally:
            self.progress.close()
            if self._log is not None:
                self._log.close()
        return state

    def _over(self) -> bool:
        state, options = self.state, self.options
        early = bool(options.patience) and state.stale >= options.patience
        return early or state.epoch >= options.epochs

    def _epoch(self, watch: SignalWatch) -> None:
        state, epoch = self.state, self.state.epoch
        steps = self.job.batches.steps_per_epoch(epoch)
        for batch in self.job.batches.epoch(epoch, start=state.step_in_epoch):
            self.arrays, result = self.job.step(self.arrays, _shared(batch))
            samples = sample_count(batch)
            state.step, state.samples = state.step + 1, state.samples + samples
            state.step_in_epoch += 1
            if state.step_in_epoch == steps:
                state.epoch, state.step_in_epoch = epoch + 1, 0
            self.progress.advance(samples)
            if state.step % self.options.log_every == 0:
                self._report(result, epoch)
            self._between(watch)
            if self._over():
                return

    def _between(self, watch: SignalWatch) -> None:
        """What happens between two steps: evaluation, checkpoint, signals."""
        state, every = self.state, self.options.evaluate_every
        ended = state.epoch >= self.options.epochs
        state.evaluate_due = (
            state.step % every == 0 if every and not ended else state.step_in_epoch == 0
        )
        stop = watch.received is not None
        if jax.process_count() > 1:
            # They meet where they look at numbers anyway; until then none leaves the others.
            looks = state.step % self.options.log_every == 0 or state.evaluate_due
            names = [n for n in processes.gather(watch.received) if n] if looks else []
            stop = bool(names)
            watch.received = names[0] if names else watch.received
        if state.evaluate_due and not stop:
            self._evaluate()
        elif self._checkpoint_is_due() and not stop:
            self.save()
        if stop:
            if self.saved_at != state.step:
                self.save()
            raise watch.stopped(f"after step {state.step}; --resume continues from there")

    def _checkpoint_is_due(self) -> bool:
        every = self.asked.checkpoint_every
        if every and self.state.step % every == 0:
            return True
        minutes = self.asked.checkpoint_minutes
        if jax.process_count() > 1 or not minutes:  # no two clocks are the same
            return False
        return time.monotonic() - self._saved_when >= 60.0 * minutes

    def _look(self) -> Dict[str, Any]:
        """The device's counts and scale on the host; waits for the steps under way."""
        arrays, state = self.arrays, self.state
        scale = getattr(arrays.loss_scale, "loss_scale", 1.0)
        names = ("applied", "in_a_row", "sums", "count")
        values: Dict[str, Any] = {
            name: np.asarray(getattr(arrays, name).addressable_data(0)) for name in names
        }
        state.applied, state.not_finite_in_a_row = int(values["applied"]), int(values["in_a_row"])
        state.skipped = state.step - state.applied
        values["scale"] = float(np.asarray(scale))
        return values

    def _report(self, result: Any, epoch: int) -> None:
        values, state = self._look(), self.state
        count = int(values["count"])
        means = values["sums"] / count if count else np.full(2, math.nan)
        zero = processes.put({"sums": np.zeros(2, np.float32), "count": np.int32(0)})
        self.arrays = self.arrays._replace(**zero)
        rate = self.progress.measure()
        self._write(
            {
                "epoch": epoch,
                "samples": state.samples,
                "loss": float(means[0]),
                "accuracy": float(means[1]),
                "learning_rate": float(np.asarray(result.learning_rate)),
                "loss_scale": values["scale"],
                "gradient_norm": float(np.asarray(result.gradient_norm)),
                "applied_steps": state.applied,
                "skipped_steps": state.skipped,
                "samples_per_second": rate,
            }
        )
        self.progress.show(
            state.step,
            {
                "loss": f"{means[0]:.4f}",
                "accuracy": f"{means[1]:.3f}",
                "samples/s": f"{rate:.0f}",
                "scale": f"{values['scale']:g}",
                "skipped": str(state.skipped),
            },
        )
        limit = 1 if self.asked.on_nonfinite == "stop" else self.options.nonfinite_limit
        if state.not_finite_in_a_row >= limit:
            raise AmpXlaError(
                f"training diverged: gradients of the last {state.not_finite_in_a_row} steps, up "
                f"to step {state.step}, were not finite, the loss scale is {values['scale']:g}; "
                f"lower --learning-rate, or --policy p=f32,c=f32,o=f32 to see whether it is the "
                f"precision"
            )

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.write(self.state.step, values)

    def _evaluate(self) -> None:
        state, options = self.state, self.options
        began = time.monotonic()
        values = self.job.evaluate(self.arrays.model)
        state.evaluate_due = False
        seconds = time.monotonic() - began
        self._write({f"dev_{name}": value for name, value in values.items()})
        better = state.judge(values[options.monitor], options.higher_is_better)
        self.save(values[options.monitor])
        words = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        note(
            f"epoch {state.epoch}/{options.epochs} step {state.step}: dev {words}"
            f"{'  (best so far)' if better else ''}  [{seconds:.1f} s]"
        )
        self.progress.pause(time.monotonic() - began)
        if options.patience and state.stale >= options.patience:
            note(f"no better {options.monitor} in {state.stale} evaluations: stopping early")

    def save(self, monitored: Optional[float] = None) -> None:
        """A checkpoint of what stands between the last step and the next."""
        self._look()
        document: Dict[str, Any] = {
            "loop": dataclasses.asdict(self.state),
            "recipe": self.run.recipe,
            "identity": self.identity,
            "ranks": {"size": 1, "first_size": 1, "micro_batches": 1},
        }
        if monitored is not None:
            document["monitored"] = {
                "name": self.options.monitor,
                "value": None if math.isnan(monitored) else monitored,
                "higher_is_better": self.options.higher_is_better,
            }
        if self.ranks.first:
            self.checkpoints.save(
                self.state.step, lambda: checkpoints.snapshot(self.arrays), document
            )
            self.checkpoints.wait()  # the next step overwrites donated arrays
        self.saved_at, self._saved_when = self.state.step, time.monotonic()
