"""The training loop: order by counter, logging, evaluation, checkpoints, orderly stops.

Between two steps the loop's state is whole: what ``LoopState`` holds and what the session's
variables hold say all about how the run goes on. Only there are checkpoints made.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.batches.protocol import sample_count
from amp_xla.data.batches.rank_shard import micro_batches, whole
from amp_xla.errors import AmpXlaError
from amp_xla.process import exits
from amp_xla.process.progress import Progress, note
from amp_xla.process.stopping import SignalWatch, Stopped
from amp_xla.training import distributed
from amp_xla.training.checkpoint import Checkpoint, fitting, problems, steps
from amp_xla.training.checkpoint_writer import CheckpointWriter
from amp_xla.training.job import Job
from amp_xla.training.metrics import MetricsLog
from amp_xla.training.nonfinite import NonFiniteHandler
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder
from amp_xla.training.shards import Shards
from amp_xla.training.state import LoopState
from amp_xla.training.step import ASKED, Feed, StepResult, TrainStep
from amp_xla.training.variables import Variables

_COMPARED_EVERY = 500  # steps between two comparisons of the ranks' weights, besides evaluations


class Loop:
    """Trains until the epochs are over, patience ends, or a signal asks to stop.

    Args:
      run: the run folder.
      job: what trains.
      step: its training step, or what watches over it.
      checkpoints: where state goes.
      options: see ``LoopOptions``.
      run_options: see ``RunOptions``.
      identity: goes into every checkpoint; see ``amp_xla.training.identity``.
      diagnose: (feed, step, loss scale) -> text that names where numbers stop being finite.
    """

    def __init__(
        self,
        run: RunFolder,
        job: Job,
        step: TrainStep,
        checkpoints: CheckpointWriter,
        variables: Variables,
        options: LoopOptions,
        run_options: Optional[RunOptions] = None,
        identity: Optional[Dict[str, Any]] = None,
        diagnose: Optional[Callable[[Any, int, float], str]] = None,
    ) -> None:
        self.run, self.job, self.step = run, job, step
        self.ranks = distributed.current()
        self.shards = Shards(job.sharded, self.ranks, run.checkpoints)
        self.checkpoints, self.variables, self.options = checkpoints, variables, options
        self.run_options = run_options or RunOptions()
        self.identity = identity or {}
        self.state = LoopState(log_sums=[0.0] * (1 + len(step.metric_names)))
        self.last_evaluation: Dict[str, float] = {}
        self._nonfinite = NonFiniteHandler(
            self, options.nonfinite_limit, self.run_options.on_nonfinite, diagnose
        )
        self._log: Optional[MetricsLog] = None
        self._verified = False
        self.saved_at: Optional[int] = None
        self._saved_when = 0.0
        self._asked = (0.0, 0.0)  # how many ranks want to stop, and to save

    def resume(self, state: LoopState, longer: bool = False) -> None:
        """Continue from the state of a restored checkpoint.

        Args:
          state: position of the run.
          longer: the run has more epochs or steps now than when it was saved.

        Raises:
          AmpXlaError: there is no such place, because batches or steps are other ones now.
        """
        if state.step_in_epoch and state.epoch < self.options.epochs:
            steps = self.job.batches.steps_per_epoch(state.epoch)
            if state.step_in_epoch >= steps:
                raise AmpXlaError(
                    f"the checkpoint stands before step {state.step_in_epoch} of epoch "
                    f"{state.epoch}, which has {steps} steps now: go on with the batch size and "
                    f"steps it had, or begin a new run with --warm-start {self.run.path}"
                )
        self.state = state
        self.saved_at = self.state.step
        if longer and self.state.step_in_epoch == 0:  # an epoch that had ended may go on now
            self.state.recount(self.job.batches.steps_per_epoch)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the variables of all ranks from a checkpoint.

        Raises:
          CheckpointError: it cannot be read.
        """
        if self.ranks.first:
            self.variables.assign(fitting(checkpoint, self.variables.shapes()))
        self.ranks.broadcast(self.job.variables)
        self.shards.read(checkpoint.path)

    def train(self, watch: Optional[SignalWatch] = None) -> LoopState:
        """Runs to the end; returns the final state, which is on disk by then.

        Raises:
          Stopped: a signal came; a checkpoint was written first.
          CheckpointError: one could not be written; the older ones are whole.
          TrainingDiverged: numbers stayed non-finite.
          NothingConvertedError, UnsupportedError: the first step did not run as asked.
        """
        state = self.state
        # A run killed before its first checkpoint starts anew, in a folder with lines already.
        if self.ranks.first:
            self._log = MetricsLog(self.run.path, state.step if self.run.again else None)
        watch = watch or SignalWatch()
        with watch.immediately("before the first step", nothing_to_save=True):
            steps = self.job.total_steps(self.options.epochs)
            self.progress = Progress(steps, state.step)
        self._saved_when = time.monotonic()
        try:
            self._between(watch)
            if not self._over():
                note("building and starting the graph (the first step is slow) ...")
            while not self._over():
                self._epoch(watch)
            self.checkpoints.wait()
        except distributed.RankLost as error:
            raise distributed.RankLost(f"{error}; {self._resumable()}") from error
        except OSError as error:
            text = exits.user_error(error)
            if text is None:
                raise
            raise AmpXlaError(f"{text}; {self._resumable()}") from error
        except AmpXlaError:
            raise
        except Exception:
            self.checkpoints.wait()  # the last one may still be being written
            raise
        finally:
            self.progress.close()
            if self._log is not None:
                self._log.close()
        return state

    def _resumable(self) -> str:
        """Return how to continue from the newest whole checkpoint."""
        whole = [path for path in steps(self.run.checkpoints) if not problems(path)]
        if not whole:
            return "no checkpoint was written yet"
        name = f"--name {self.run.name} --resume"
        return f"{whole[-1].name} is whole: the same command with {name} continues"

    def _over(self) -> bool:
        state, options = self.state, self.options
        early = bool(options.patience) and state.stale >= options.patience
        return not state.evaluate_due and (early or state.epoch >= options.epochs)

    def _epoch(self, watch: SignalWatch) -> None:
        """One epoch from where the state stands."""
        state = self.state
        steps = self.job.batches.steps_per_epoch(state.epoch)
        if state.step_in_epoch >= steps:
            raise AmpXlaError(
                f"epoch {state.epoch} has {steps} batches, so there is nothing to train on after "
                f"{state.step_in_epoch}"
            )
        for batch in self.job.batches.epoch(state.epoch, start=state.step_in_epoch):
            epoch = state.epoch
            feed, number, result = self._step(batch, watch)
            self._count(result, sample_count(whole(batch)))
            if state.step_in_epoch == steps:
                state.epoch, state.step_in_epoch = epoch + 1, 0
            state.evaluate_due = self._evaluation_is_due()
            if self.step.executed is not None and not self._verified:
                self._verify()
            if state.step % self.options.log_every == 0:
                self._report(result, epoch)
            if not result.finite:
                self._nonfinite.judge(result, feed, number)
            self._between(watch)
            if self._over():
                return

    def _step(self, batch: Any, watch: SignalWatch) -> Tuple[Feed, int, StepResult]:
        """Compute this rank's micro-batches of a batch, and apply the update.

        Returns:
          Feed and number of the first micro-batch whose loss is not finite, else of the last; the
          result of all.
        """
        whole: Optional[StepResult] = None
        shards = micro_batches(batch)
        for number, shard in enumerate(shards, self.state.step * len(shards)):
            feed = self.step.feed(shard)
            if ASKED in feed:
                due = self.ranks.first and self._checkpoint_is_due(ahead=1)
                feed[ASKED] = np.array([watch.received is not None, due], np.float32)
            try:
                result = self.step(feed, number)
            except tf.errors.OpError as error:
                if self.ranks.several and "horovod" in str(error).lower():
                    raise self.ranks.lost(error) from error
                raise
            if whole is None or math.isfinite(whole.own):
                replay = feed, number
            whole = result if whole is None else whole.then(result)
        assert whole is not None  # a batch has a micro-batch
        self._asked = (whole.asked[0], whole.asked[1]) if whole.asked else (0.0, 0.0)
        return (*replay, whole)

    def _evaluation_is_due(self) -> bool:
        state, every = self.state, self.options.evaluate_every
        if every and state.epoch < self.options.epochs:
            return state.step % every == 0
        return state.step_in_epoch == 0

    def _between(self, watch: SignalWatch) -> None:
        """What happens between two steps: evaluation, checkpoint, signals."""
        # What one rank decided by its own clock or signal, all were told in the step.
        stop, due = watch.received is not None, False
        if self.ranks.several:
            stop, due = self._asked[0] > 0, self._asked[1] > 0
        else:
            due = self._checkpoint_is_due()
        if self.state.evaluate_due and not stop:
            stop = not self._evaluate(watch)
        elif due and self.saved_at != self.state.step:
            self.save()
        if self.ranks.several and self.state.step % _COMPARED_EVERY == 0:
            self._compare()
        self.checkpoints.poll()
        if stop or (watch.received is not None and not self.ranks.several):
            self._told(watch)
            state = self.state
            if self.saved_at != state.step and state.step:
                self.save()
            self.checkpoints.wait()
            raise watch.stopped(
                f"after step {state.step}; --resume continues from there"
                if state.step
                else "before the first step"
            )

    def _checkpoint_is_due(self, ahead: int = 0) -> bool:
        state, options = self.state, self.run_options
        step = state.step + ahead
        if step == self.saved_at or not step:
            return False
        # While steps are skipped nothing is learnt, and a roll-back must find an older one.
        if state.not_finite_in_a_row or self.checkpoints.busy:
            return False
        minutes = (time.monotonic() - self._saved_when) / 60.0
        if options.checkpoint_minutes and minutes >= options.checkpoint_minutes:
            return True
        every = options.checkpoint_every
        return bool(every) and step >= (self.saved_at or 0) // every * every + every

    def _count(self, result: StepResult, samples: int) -> None:
        state = self.state
        state.step += 1
        state.step_in_epoch += 1
        state.samples += samples
        if result.finite:
            values = (result.loss,) + result.metrics
            state.log_sums = [t + float(v) for t, v in zip(state.log_sums, values)]
            state.log_count += 1
            state.not_finite_in_a_row = 0
        else:
            state.skipped += 1
            state.not_finite_in_a_row += 1
        state.applied = result.applied
        self.progress.advance(samples)

    def _verify(self) -> None:
        self._verified = True
        found = self.step.executed
        assert found is not None  # the first step has just run
        note(f"first step ran: {found.describe()}")
        self.run.write_json("executed.json", dataclasses.asdict(found))
        self.job.verify(found)

    def _report(self, result: StepResult, epoch: int) -> None:
        state = self.state
        means = [s / state.log_count if state.log_count else math.nan for s in state.log_sums]
        state.log_sums, state.log_count = [0.0] * len(means), 0
        rate = self.progress.measure()
        values: Dict[str, Any] = {
            "epoch": epoch,
            "samples": state.samples,
            "loss": means[0],
            **dict(zip(self.step.metric_names, means[1:])),
            "learning_rate": result.learning_rate,
            "loss_scale": result.loss_scale,
            "gradient_norm": result.gradient_norm,
            "applied_steps": state.applied,
            "skipped_steps": state.skipped,
            "samples_per_second": rate,
            **{name: rate * factor(state.step) for name, factor in self.job.rates.items()},
        }
        self._write(values)
        shown = {"loss": f"{means[0]:.4f}"}
        shown.update((n, f"{m:.3f}") for n, m in zip(self.step.metric_names, means[1:]))
        shown.update({"samples/s": f"{rate:.0f}", "scale": f"{result.loss_scale:g}"})
        shown["skipped"] = str(state.skipped)
        self.progress.show(state.step, shown)

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._log is not None:  # the first rank's
            self._log.write(self.state.step, values)

    def _told(self, watch: SignalWatch) -> bool:
        """True where one of the ranks got a signal; all of them know it then."""
        names = [name for name in self.ranks.gather(watch.received) if name]
        if names:
            watch.received = names[0]
        return bool(names)

    def _evaluate(self, watch: SignalWatch) -> bool:
        """Evaluates, keeps the best; False where a signal ended it: it stays due."""
        state, options = self.state, self.options
        began = time.monotonic()
        try:
            values = self._evaluated(watch)
        except Stopped:
            return False
        self._compare()
        state.evaluate_due = False
        self.last_evaluation = values
        seconds = time.monotonic() - began
        self._write({f"dev_{name}": value for name, value in values.items()})
        better = state.judge(values[options.monitor], options.higher_is_better)
        self.save(values[options.monitor])
        if better and self.job.export is not None and self.ranks.first:
            self.job.export(str(self.run.path))
        words = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        note(
            f"epoch {state.epoch}/{options.epochs} step {state.step}: dev {words}"
            f"{'  (best so far)' if better else ''}  [{seconds:.1f} s]"
        )
        self.progress.pause(time.monotonic() - began)
        if options.patience and state.stale >= options.patience:
            note(f"no better {options.monitor} in {state.stale} evaluations: stopping early")
        return True

    def _evaluated(self, watch: SignalWatch) -> Dict[str, float]:
        during = "during an evaluation"

        def agree() -> None:
            if self._told(watch):
                raise watch.stopped(during)

        # Each rank has a share, and none may leave the others waiting.
        stops = self.ranks.asking(agree) if self.ranks.several else watch.immediately(during)
        with stops:
            return {name: float(value) for name, value in self.job.evaluate().items()}

    def _compare(self) -> None:
        """Makes sure that all ranks have the same weights."""
        if self.ranks.several:
            weights = self.job.common(self.step.variables)
            self.ranks.compare([v.op.name for v in weights], backend.session().run(weights))

    def save(self, monitored: Optional[float] = None) -> None:
        """Write a checkpoint of the current state; all ranks call it, the first one writes.

        Args:
          monitored: value of the evaluation just made.
        """
        document: Dict[str, Any] = {
            "recipe": self.run.recipe,
            "loop": dataclasses.asdict(self.state),
            "identity": self.identity,
            "ranks": {
                "size": self.ranks.world.size,
                "first_size": self.ranks.first_size,
                "micro_batches": getattr(self.step.optimizer, "accumulate", 1),
            },
        }
        if monitored is not None:
            document["monitored"] = {
                "name": self.options.monitor,
                "value": None if math.isnan(monitored) else monitored,
                "higher_is_better": self.options.higher_is_better,
            }
        shards = self.shards.write()
        if self.ranks.first:
            self.checkpoints.save(self.state.step, self.variables.snapshot, document, shards)
        self.saved_at, self._saved_when = self.state.step, time.monotonic()
