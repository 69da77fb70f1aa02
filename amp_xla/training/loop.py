"""The training loop of all recipes: steps, logging, evaluation, checkpoints, orderly stops.

The content of a checkpoint is copied between two steps: at that moment, ``LoopState`` and the
engine's tensors determine how the run continues. A thread writes it while training continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.batches.protocol import sample_count, whole
from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process import exits
from amp_xla.process.progress import Progress, note
from amp_xla.process.stopping import SignalWatch, Stopped
from amp_xla.process.world import announce
from amp_xla.training import distributed, nonfinite
from amp_xla.training.checkpoint import MORE, CheckpointError, problems, prune, steps, write
from amp_xla.training.engine import Engine, StepResult
from amp_xla.training.metrics import MetricsLog
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder, recorded
from amp_xla.training.state import LoopState, identity_of

_COMPARE_EVERY = 500  # steps between two comparisons of the ranks' weights
_ASK_EVERY = 16  # batches of an evaluation after which several ranks exchange their signals
_CHECKPOINT_SECONDS = 600.0  # maximum time between two checkpoints

Content = Tuple[Dict[str, Any], Mapping[str, np.ndarray]]  # state.json and tensors by name


class Loop:
    """Training until the last epoch, early stopping or a signal.

    Attributes:
      config: the recipe's configuration; its field ``run`` has ``RunOptions``.
      identity: saved with each checkpoint; see ``state.identity_of``.
      more: returns further content of checkpoints: fields of ``state.json``, arrays by name.
    """

    def __init__(self, run: RunFolder, engine: Engine, options: LoopOptions, config: Any) -> None:
        self.run, self.engine = run, engine
        self.run_options: RunOptions = config.run
        self._writer = ThreadPoolExecutor(1, "checkpoint")  # while training continues
        self._writing: Optional[Future[None]] = None
        self.options, self.config, self.identity = options, config, identity_of(engine, config)
        self.state = LoopState(log_sums=[0.0] * (1 + len(engine.metric_names)))
        self.reported_nonfinite = False
        self.more: Callable[[], Content] = lambda: ({}, {})
        self._log: Optional[MetricsLog] = None
        self._result: Optional[StepResult] = None
        self._saved_at: Optional[int] = None
        self._saved_when = 0.0

    @property
    def total_steps(self) -> int:
        """Number of steps in the whole run."""
        return self.state.total(self.options.epochs, self.engine.job.batches.steps_per_epoch())

    def resume(self, state: LoopState, longer: bool = False) -> None:
        """Continue from a checkpoint's state; ``longer``: whether the run was extended."""
        if len(state.log_sums) != len(self.state.log_sums):  # metrics were added or removed
            state.log_sums, state.log_count = self.state.log_sums, 0
        self.state, self._saved_at = state, state.step
        if longer and state.epoch >= self.options.epochs:  # the last epoch has become longer
            count = self.engine.job.batches.steps_per_epoch()
            state.epoch, state.step_in_epoch = divmod(state.step, count)

    def train(self, watch: SignalWatch) -> None:
        """Train to the end, and save.

        Raises:
          Stopped: a signal arrived; a checkpoint was written first.
          CheckpointError, RankLost: a checkpoint could not be written, or another rank has ended.
          TrainingDiverged: loss or gradients were not finite; see ``nonfinite``.
          NothingConvertedError, UnsupportedError: AMP or XLA did not take effect.
        """
        with self.running(watch):
            self.between(watch)
            while not self.over:
                self._epoch(watch)

    @contextlib.contextmanager
    def running(self, watch: SignalWatch) -> Iterator[None]:
        """Write log, status and report while the ``with`` block trains.

        If a rank is lost or a file fails, the error message says how to continue the run.
        """
        state = self.state
        announce(self.engine.ranks.world)
        with recorded(self):
            if self.engine.ranks.first:
                pending = ["dev"] * state.evaluate_due + ["train"] * bool(state.log_count)
                self._log = MetricsLog(self.run.path, state.step, pending, self.engine.events)
            self.progress = Progress(self.total_steps, state.step)
            self._saved_when = time.monotonic()
            try:
                if not self.over:
                    note("building and starting the graph (the first step is slow) ...")
                yield
                self.finish_writing()
            except Exception as error:
                with contextlib.suppress(CheckpointError):  # ``error`` came first
                    self.finish_writing()  # before the run folder is released
                if isinstance(error, (RankLost, CheckpointError)):
                    raise type(error)(f"{error}; {self._resumable()}") from error
                text = exits.user_error(error) if isinstance(error, OSError) else None
                if text is not None:
                    raise AmpXlaError(f"{text}; {self._resumable()}") from error
                raise
            finally:
                self.progress.close()
                if self._log is not None:
                    self._log.close()

    def _resumable(self) -> str:
        """Return the end of an error message: how the run can be continued."""
        for path in reversed(steps(self.run.checkpoints)):
            try:
                if not problems(path):
                    return f"{path.name} is whole: {self.run.continuing}"
            except CheckpointError:  # the message is about another error
                return f"{path.name} cannot be read"
        return "no checkpoint was written yet"

    @property
    def over(self) -> bool:
        """True if no step and no evaluation is left, also after early stopping."""
        state, options = self.state, self.options
        early = bool(options.patience) and state.stale >= options.patience
        return not state.evaluate_due and (early or state.epoch >= options.epochs)

    def _epoch(self, watch: SignalWatch) -> None:
        state, batches = self.state, self.engine.job.batches
        count = batches.steps_per_epoch()
        if state.step_in_epoch >= count:
            raise AmpXlaError(
                f"epoch {state.epoch + 1} has {count} batches, but the checkpoint was written "
                f"after batch {state.step_in_epoch}; start a new run with --warm-start "
                f"{self.run.path}"
            )
        for batch in batches.epoch(state.epoch, start=state.step_in_epoch):
            result = self.engine.step(batch, state.step, self.flag(watch))
            self.after_step(result, sample_count(whole(batch)), count)
            self.between(watch, result.flags)
            if self.over:
                return

    def after_step(self, result: StepResult, samples: int, count: int) -> None:
        """Count and log a step of ``samples`` samples, in an epoch of ``count`` steps.

        The caller must call ``between`` next.
        """
        state, options, first = self.state, self.options, self._result is None
        self._result = result
        state.step += 1
        state.step_in_epoch += 1
        state.samples += samples
        if result.finite:
            values = (result.loss, *result.metrics)
            state.log_sums = [t + float(v) for t, v in zip(state.log_sums, values)]
            state.log_count += 1
            state.not_finite_in_a_row = 0
        else:
            state.skipped += self.engine.skips
            state.not_finite_in_a_row += 1
        state.applied = result.applied
        self.progress.advance(samples)
        if state.step_in_epoch == count:
            state.epoch, state.step_in_epoch = state.epoch + 1, 0
        ended = state.epoch >= options.epochs
        state.evaluate_due = state.step_in_epoch == 0
        if options.evaluate_every and not ended:
            state.evaluate_due = state.step % options.evaluate_every == 0
        if first:
            executed = self.engine.first_step_ran()
            if executed is not None:
                self.run.write_json("executed.json", executed)
        if state.step % options.log_every == 0 or ended:
            self._report()
        if not result.finite:
            nonfinite.handle(self, result)

    def flag(self, watch: SignalWatch) -> bool:
        """Return whether this rank has to stop or to save after the next step."""
        due = self.engine.ranks.first and self.checkpoint_is_due(ahead=1)
        return due or watch.received is not None

    def between(self, watch: SignalWatch, flags: Sequence[float] = ()) -> None:
        """Evaluate, save and stop between two steps, if due.

        ``flags`` are those of the last ``StepResult``. If there are several ranks and no flag is
        set, no rank has to save or to stop, so the ranks do not exchange their signals.
        """
        state, several = self.state, self.engine.ranks.several
        stop, due = (False, False) if several and not any(flags) else self._agree(watch)
        if state.evaluate_due and not stop:
            stop = not self.evaluate(watch)
        elif due:
            self.save()
        if state.step % _COMPARE_EVERY == 0:
            self.engine.compare()
        if not self._is_writing:
            self.finish_writing()  # raises the error of a write that failed
        if stop or (watch.received is not None and not several):
            raise self.stopped(watch)

    def stopped(self, watch: SignalWatch, content: Optional[Content] = None) -> Stopped:
        """Save, and return the error that ends a run between two steps after a signal."""
        self.save_if_needed(content)
        self.engine.ranks.all_do(self.finish_writing)  # no rank ends before it is written
        step = self.state.step
        where = f"after step {step}; {self.run.resume_by} continues from there"
        return watch.stopped(where if step else "before the first step")

    def checkpoint_is_due(self, ahead: int = 0) -> bool:
        """Return whether a checkpoint is due ``ahead`` steps from now."""
        state, options = self.state, self.run_options
        step = state.step + ahead
        if step == self._saved_at or not step:
            return False
        # A roll-back needs a checkpoint that was written before the skipped updates.
        if state.not_finite_in_a_row or self._is_writing:
            return False
        if time.monotonic() - self._saved_when >= _CHECKPOINT_SECONDS:
            return True
        every = options.checkpoint_every
        return bool(every) and step >= (self._saved_at or 0) // every * every + every

    @property
    def epoch_number(self) -> int:
        """Epoch of the last step, counted from 1."""
        return self.state.epoch + bool(self.state.step_in_epoch)

    def _report(self) -> None:
        state, result = self.state, self._result
        means = [s / state.log_count if state.log_count else math.nan for s in state.log_sums]
        state.log_sums, state.log_count = [0.0] * len(means), 0
        rate = self.progress.measure()
        metrics = dict(zip(self.engine.metric_names, means[1:]))
        of_step = ("learning_rate", "loss_scale", "gradient_norm")
        values: Dict[str, Any] = {
            "samples": state.samples,
            "loss": means[0],
            **metrics,
            **{name: getattr(result, name, None) for name in of_step},
            "applied_steps": state.applied,
            "skipped_steps": state.skipped,
            "samples_per_second": rate,
        }
        for name, factor in self.engine.job.rates.items():
            values[name] = rate * factor(state.step)
        self._write("train", values)
        shown = {"loss": f"{means[0]:.4f}"}
        shown["scale"] = "" if result is None else f"{result.loss_scale:g}"
        shown["skipped"] = str(state.skipped)
        shown.update((name, f"{mean:.3f}") for name, mean in metrics.items())
        shown["samples/s"] = f"{rate:.0f}"
        self.progress.show(state.step, shown)

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.write(self.state.step, kind, self.epoch_number, values)

    def _agree(self, watch: SignalWatch) -> Tuple[bool, bool]:
        """Return whether a rank got a signal, and whether rank 0 must save; all ranks call it."""
        votes: List[Any] = self.engine.ranks.gather([watch.received, self.checkpoint_is_due()])
        signals = [name for name, _ in votes if name]
        if signals:
            watch.received = signals[0]
        return bool(signals), votes[0][1]

    def evaluate(self, watch: SignalWatch) -> bool:
        """Evaluate and save. If a signal interrupts the evaluation, return False; it stays due."""
        state, options, job = self.state, self.options, self.engine.job
        began = time.monotonic()
        try:
            values = self._evaluated(watch)
        except Stopped:
            return False
        self.engine.compare()
        state.evaluate_due = False
        seconds = time.monotonic() - began
        better = state.record(values.get(options.monitor, math.nan), options.higher_is_better)
        if self.over and state.log_count:  # early stopping within a logging interval
            self._report()
        self._write("dev", {f"dev_{name}": value for name, value in values.items()})
        self.save()
        if better and job.export is not None:
            self.engine.ranks.from_first(lambda: job.export(str(self.run.path)))
        words = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        note(
            f"epoch {self.epoch_number}/{options.epochs} step {state.step}: dev {words}"
            f"{'  (best so far)' if better else ''}  [{seconds:.1f} s]"
        )
        if state.best is None and state.stale == 1:
            value = values.get(options.monitor, "missing")
            note(f"warning: dev {options.monitor} is {value}: no checkpoint is marked as the best")
        self.progress.pause(time.monotonic() - began)
        if options.patience and state.stale >= options.patience:
            note(f"{options.monitor} has not improved in {state.stale} evaluations: stopping early")
        return True

    def _evaluated(self, watch: SignalWatch) -> Dict[str, float]:
        number = itertools.count()

        def ask() -> None:  # a rank that stopped on its own would leave the others waiting
            self.progress.alive("evaluating ...")
            alone = not self.engine.ranks.several
            if (alone or next(number) % _ASK_EVERY == 0) and self._agree(watch)[0]:
                raise watch.stopped("during an evaluation")

        distributed.current().ask = ask
        try:
            found = self.engine.job.evaluate()
        finally:
            distributed.current().ask = lambda: None
        try:
            return {name: float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError):
            shown = " ".join(repr(found).split())
            raise AmpXlaError(f"evaluate must return numbers by name; found: {shown}") from None

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def finish_writing(self) -> None:
        """Wait until the last checkpoint is on disk; raise CheckpointError if writing it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def save_if_needed(self, content: Optional[Content] = None) -> None:
        """Save, unless the current step has a checkpoint or no step was made yet."""
        if self._saved_at != self.state.step and self.state.step:
            self.save(content)

    def content(self) -> Content:
        """Return ``state.json`` and tensors of the current state; all ranks call it.

        The tensors are in host memory. On all ranks but the first, both results are empty.
        """
        ranks, (fields, arrays) = self.engine.ranks, self.more()
        if not ranks.first:
            return {}, {}
        document = {
            "recipe": self.run.recipe,
            "loop": dataclasses.asdict(self.state),
            "identity": self.identity,
            **fields,
            "ranks": {
                "size": ranks.world.size,
                "first_size": ranks.first_size,
                "micro_batches": self.engine.micro_batches,
            },
        }
        tensors = {MORE + name: array for name, array in arrays.items()}
        return document, {**self.engine.snapshot(), **tensors}

    def save(self, content: Optional[Content] = None) -> None:
        """Start to write a checkpoint of ``content`` (None = current state); all ranks call it."""
        ranks = self.engine.ranks
        # The last checkpoint may still be in writing, and be using the folder of the shards.
        ranks.all_do(self.finish_writing)
        shards = self.engine.write_shards(self.run.checkpoints)
        state, tensors = content or self.content()
        if ranks.first:

            def written() -> None:
                files, folder = self.engine.job.assets, self.run.checkpoints
                write(folder, tensors, state, files, shards)
                self.run.mark_latest()
                prune(folder, self.run_options.keep)

            self._writing = self._writer.submit(written)
        self._saved_at, self._saved_when = self.state.step, time.monotonic()
