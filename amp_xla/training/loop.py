"""The training loop: order by counter, logging, evaluation, best checkpoint, early stopping."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, Mapping, Optional

import numpy as np

from amp_xla import backend, setup
from amp_xla.rewrite import executed
from amp_xla.training.checkpoint import Checkpoints
from amp_xla.training.launch import LoopOptions
from amp_xla.training.metrics import MetricsLog
from amp_xla.training.progress import Progress, note
from amp_xla.training.run import RunFolder
from amp_xla.training.step import StepResult, TrainStep
from amp_xla.training.stopping import SignalWatch, Stopped

@dataclasses.dataclass
class LoopState:
    """Where a run is. ``step`` counts steps tried, applied or skipped; all from 0.

    ``epoch`` and ``step_in_epoch`` name the next batch; ``samples`` counts real samples seen;
    ``best`` is the best monitored value so far, ``stale`` the evaluations since.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    samples: int = 0
    skipped: int = 0
    best: Optional[float] = None
    best_step: int = 0
    stale: int = 0


class Loop:
    """Trains until the epochs are over, patience ends, or a signal asks to stop.

    Args:
      run: the run folder.
      step: the training step.
      batches: ``amp_xla.data.batching.Batches`` or anything with its ``epoch(e, start)`` and
        ``steps_per_epoch``, whose batches have the step's input names as attributes.
      evaluate: returns name -> value; called between steps.
      checkpoints: where state goes.
      options: see ``LoopOptions``.
    """

    def __init__(
        self,
        run: RunFolder,
        step: TrainStep,
        batches: Any,
        evaluate: Callable[[], Mapping[str, float]],
        checkpoints: Checkpoints,
        options: LoopOptions,
    ) -> None:
        self.run, self.step, self.batches, self.evaluate = run, step, batches, evaluate
        self.checkpoints, self.options = checkpoints, options
        self.state = LoopState()
        self.last_evaluation: Dict[str, float] = {}
        self._log = MetricsLog(run.path)
        self._sums = np.zeros(1 + len(step.metric_names))
        self._summed = 0
        self._saved_at = -1

    def train(self) -> LoopState:
        """Runs to the end; returns the final state.

        Raises:
          Stopped: a signal came; a checkpoint was written first.
          NothingConvertedError, UnsupportedError: the first step did not run as asked.
        """
        state, options = self.state, self.options
        total = sum(self.batches.steps_per_epoch(e) for e in range(options.epochs))
        self.progress = Progress(total, state.step, options.log_every)
        note("building and starting the graph (the first step is slow) ...")
        with SignalWatch() as watch:
            try:
                while state.epoch < options.epochs:
                    if self._epoch(watch):
                        break
            finally:
                self.progress.close()
                self._log.close()
        return state

    def _epoch(self, watch: SignalWatch) -> bool:
        """One epoch from where the state stands; True = stop for good."""
        state, options = self.state, self.options
        steps = self.batches.steps_per_epoch(state.epoch)
        for batch in self.batches.epoch(state.epoch, start=state.step_in_epoch):
            feed = {name: getattr(batch, name) for name in self.step.input_names}
            result = self.step(feed, state.step)
            self._count(result, int((batch.sample_ids >= 0).sum()))
            if state.step == 1:
                self._verify()
            if state.step % options.log_every == 0:
                self._report(result)
            last = state.step_in_epoch == steps
            every = options.evaluate_every
            if last:
                state.epoch, state.step_in_epoch = state.epoch + 1, 0
            if (every and state.step % every == 0) or (not every and last):
                if self._evaluate():
                    return True
            elif options.checkpoint_every and state.step % options.checkpoint_every == 0:
                self._save()
            if watch.received:
                self._save()
                raise Stopped(
                    f"stopped by {watch.received} after step {state.step}; the checkpoint is "
                    f"{self.checkpoints.folder / self._step_name()}",
                    watch.exit_code,
                )
        return False

    def _count(self, result: StepResult, samples: int) -> None:
        state = self.state
        state.step += 1
        state.step_in_epoch += 1
        state.samples += samples
        if result.finite:
            self._sums += (result.loss,) + result.metrics
            self._summed += 1
        else:
            state.skipped += 1
        self.progress.advance(samples)

    def _verify(self) -> None:
        settings = setup.current()
        half, why = backend.half_dtype()
        found = self.step.executed
        assert found is not None  # the first step has just run
        note(f"first step ran: {found.describe()}")
        self.run.write_json("executed.json", dataclasses.asdict(found))
        executed.verify(found, settings.precision, half, why, settings.xla)

    def _report(self, result: StepResult) -> None:
        state = self.state
        means = self._sums / self._summed if self._summed else np.full_like(self._sums, math.nan)
        self._sums[:], self._summed = 0.0, 0
        rate = self.progress.measure()
        values: Dict[str, Any] = {
            "epoch": state.epoch,
            "samples": state.samples,
            "loss": means[0],
            **dict(zip(self.step.metric_names, means[1:])),
            "learning_rate": result.learning_rate,
            "loss_scale": result.loss_scale,
            "gradient_norm": result.gradient_norm,
            "skipped_steps": state.skipped,
            "samples_per_second": rate,
        }
        self._log.write(state.step, values)
        shown = {"loss": f"{means[0]:.4f}"}
        shown.update((n, f"{m:.3f}") for n, m in zip(self.step.metric_names, means[1:]))
        shown.update({"samples/s": f"{rate:.0f}", "scale": f"{result.loss_scale:g}"})
        shown["skipped"] = str(state.skipped)
        self.progress.show(state.step, shown)

    def _evaluate(self) -> bool:
        """Evaluates, keeps the best; True = patience is over."""
        state, options = self.state, self.options
        began = time.monotonic()
        values = dict(self.evaluate())
        self.last_evaluation = values
        seconds = time.monotonic() - began
        self._log.write(state.step, {f"dev_{name}": value for name, value in values.items()})
        current = values[options.monitor]
        sign = 1.0 if options.higher_is_better else -1.0
        better = state.best is None or sign * current > sign * state.best
        if better:
            state.best, state.best_step, state.stale = float(current), state.step, 0
        else:
            state.stale += 1
        self._save()
        if better:
            self.checkpoints.save("best", dataclasses.asdict(state))
        words = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        note(
            f"epoch {state.epoch}/{options.epochs} step {state.step}: dev {words}"
            f"{'  (best so far)' if better else ''}  [{seconds:.1f} s]"
        )
        self.progress.pause(time.monotonic() - began)
        if options.patience and state.stale >= options.patience:
            note(f"no better {options.monitor} in {state.stale} evaluations: stopping early")
            return True
        return False

    def _step_name(self) -> str:
        return f"step-{self.state.step:08d}"

    def _save(self) -> None:
        if self._saved_at != self.state.step:
            self.checkpoints.save(self._step_name(), dataclasses.asdict(self.state))
            self._saved_at = self.state.step
