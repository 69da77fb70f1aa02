"""The callback ``Run``, which calls the training loop of the recipes between Keras' batches."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import types
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from amp_xla import backend
from amp_xla.backend import configuring, keras
from amp_xla.callbacks import data
from amp_xla.callbacks.data import Feed, Source
from amp_xla.callbacks.others import Others
from amp_xla.callbacks.step import FitJob, FitStep
from amp_xla.config import fields
from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process.progress import note
from amp_xla.process.stopping import SignalWatch, Stopped
from amp_xla.training import distributed, run_metadata
from amp_xla.training.launch import newest, prepare, report
from amp_xla.training.options import Intervals, LoopOptions, RunOptions
from amp_xla.training.run import RunFolder, ScriptFolder
from amp_xla.training.tensorflow_engine import TensorFlowEngine

# Parts of the names of values for which lower is better.
_LOWER = ("loss", "error", "mae", "mse", "perplexity")
# State of ``fit`` in a checkpoint, at the start of a new run.
_NEW: Dict[str, Any] = {
    "seed": None, "monitor": "loss", "loss_sum": 0.0, "metrics": [], "callbacks": [],
}  # fmt: skip
# Callbacks that write files. With several ranks, only the first rank calls them.
_WRITERS = ("ModelCheckpoint", "CSVLogger", "TensorBoard")


@dataclasses.dataclass(frozen=True)
class Script:
    """Configuration of a run that a script started, without a recipe's flags."""

    run: RunOptions = RunOptions()


class Run(keras.callbacks.Callback):
    """A callback that gives ``fit`` a run folder, checkpoints and an exact resume.

    It may be anywhere in the list of callbacks. ``fit`` begins with the first batch, or with the
    batch after the newest checkpoint. The data are a ``keras.utils.Sequence``, a generator or NumPy
    arrays. Their order depends on the run's seed, which is drawn from ``numpy.random`` when the run
    begins. ``Run`` adds ``loss_scale`` and ``skipped_steps`` to the logs of each epoch.

    Args:
      folder: path of the run folder, such as ``runs/ner``.
      resume: continue from the newest whole checkpoint in ``folder``, if there is one.
      monitor: name of the log value that decides which checkpoint is best; None = ``val_loss``, or
        without it the first ``val_`` value. Lower is better if the name contains loss, error, mae,
        mse or perplexity.
      checkpoint_every: steps between checkpoints; 0 = after each epoch and every 10 minutes.
      keep: number of newest checkpoints to keep, besides the best one.
      on_nonfinite: what to do at a step that is not finite: ``skip`` it; skip it and ``report`` the
        first operation that was not finite; or ``stop``.
      log_every: steps between lines of metrics.jsonl.
      force_resume: resume even if settings or versions differ.

    Raises:
      AmpXlaError: the folder already has a run and ``resume`` is False, or it cannot be used; an
        argument is out of range.
    """

    def __init__(
        self,
        folder: Union[str, Path, RunFolder],
        resume: bool = False,
        monitor: Optional[str] = None,
        checkpoint_every: int = 0,
        keep: int = 2,
        on_nonfinite: str = "skip",
        log_every: int = 20,
        force_resume: bool = False,
    ) -> None:
        super().__init__()
        options: Dict[str, Any] = {
            "resume": resume, "force_resume": force_resume, "checkpoint_every": checkpoint_every,
            "keep": keep, "on_nonfinite": on_nonfinite,
        }  # fmt: skip
        known = {**fields(RunOptions), **fields(Intervals)}
        for name, value in {**options, "log_every": log_every}.items():
            problem = known[name].problem(value)
            if problem:
                raise AmpXlaError(f"{name}={problem}")
        self._config: Any = Script(RunOptions(**options))
        self._monitor, self._log_every = monitor, log_every
        if not isinstance(folder, RunFolder):
            folder = ScriptFolder(Path(folder), resume, distributed.current().first)
        self.folder: RunFolder = folder
        self._open = contextlib.ExitStack()
        self.in_fit = False
        self._validation: Dict[str, float] = {}
        self._step: Any = None
        self._loop: Any = None

    # -- parts that ``RecipeRun`` replaces -------------------------------------------------------

    step_input: Optional[Any] = None  # placeholder of the step number
    evaluate: Optional[Callable[[], Mapping[str, float]]] = None

    def source(self, given: Mapping[str, Any]) -> Source:
        return data.source(given)

    def options(self, given: Mapping[str, Any]) -> LoopOptions:
        """Return the number of epochs, the intervals, and the monitor of the best checkpoint."""
        name = self._monitor or f"val_{self._saved['monitor']}"
        name = name[len("val_") :] if name.startswith("val_") else name
        return LoopOptions(given["epochs"], self._log_every, 0, name, _higher_is_better(name))

    def job(self, step: FitStep, source: Source) -> FitJob:
        batches: Any = types.SimpleNamespace(  # Keras reads the batches itself
            shapes=(), steps_per_epoch=lambda: source.steps, epoch=lambda epoch: iter(())
        )
        return FitJob(
            step.model, step, batches,  # type: ignore[arg-type]
            self.evaluate or (lambda: self._validation), {}, configuring.current(),
        )  # fmt: skip

    def samples(self, rows: int) -> int:
        """Return the number of samples in the current batch; ``rows`` counts padding rows, too."""
        return rows

    # -- fit ------------------------------------------------------------------------------------

    def fit(self, fit: Callable[..., Any], model: Any, given: Dict[str, Any]) -> Any:
        """Call Keras' ``fit`` or ``fit_generator`` with this callback; return its result.

        Args:
          fit: the method of the model's class.
          model: a compiled model.
          given: all arguments of ``fit`` by name.

        Raises:
          SystemExit: a signal arrived, after which a checkpoint was written; or a rank was lost.
          AmpXlaError: the data or the checkpoint cannot be used, or training must stop.
        """
        if self._loop is not None:
            raise AmpXlaError(
                f"the Run of {self.folder.path} has ended; create a new Run for another fit"
            )
        self.in_fit = True
        try:
            with self._open:
                history = fit(model, **self._begin(model, given))
                self._end()
            return history
        except (Stopped, RankLost) as stopped:
            # Rank 0 may be the one that was lost.
            note(str(stopped), ranks=2 if isinstance(stopped, RankLost) else 1)
            raise SystemExit(stopped.exit_code) from None
        finally:
            self.in_fit = False

    def _begin(self, model: Any, given: Dict[str, Any]) -> Dict[str, Any]:
        """Start the run or restore its checkpoint; return the changed arguments of ``fit``."""
        self._open.callback(self.folder.close)
        self._watch = self._open.enter_context(SignalWatch())
        with self._watch.immediately("before the first step; nothing was lost", True):
            self._prepare(model, given)
        self._open.enter_context(self._loop.running(self._watch))
        if given["verbose"] in (1, "auto"):
            self._loop.progress.hide()
        self._began = time.monotonic()
        others = [callback for callback in given["callbacks"] if callback is not self]
        if not self._ranks.first:
            others = [other for other in others if type(other).__name__ not in _WRITERS]
        return {
            **data.arguments(self._source, self._feed, given),
            "initial_epoch": self._loop.state.epoch,
            "callbacks": [self, *others, _Last(self, others)],
            "verbose": given["verbose"] if self._ranks.first else 0,
        }

    def _prepare(self, model: Any, given: Dict[str, Any]) -> None:
        if getattr(model, "optimizer", None) is None:
            raise AmpXlaError("the model is not compiled; call model.compile before fit")
        if getattr(model, "_distribution_strategy", None) is not None:
            raise AmpXlaError(
                "Run does not train under a tf.distribute strategy; on several GPUs start the "
                "script with horovodrun, without the strategy (docs/ranks.md)"
            )
        if configuring.current().half == "float16" and not hasattr(model.optimizer, "loss_scale"):
            note(
                f"warning: float16 without loss scaling loses small gradients; compile with "
                f"LossScaleOptimizer({type(model.optimizer).__name__}(...))"
            )
        self._ranks = distributed.current()
        self._source, resume_from = self.source(given), newest(self.folder, self._ranks)
        self._saved = {**_NEW, **(resume_from.state.get("fit", {}) if resume_from else {})}
        state = None if resume_from is None else resume_from.loop
        epoch = given["initial_epoch"] if state is None else state.epoch
        skip = 0 if state is None else state.step_in_epoch
        drawn = self._ranks.from_first(lambda: int(np.random.randint(2**31 - 1)))
        self._seed = drawn if self._saved["seed"] is None else self._saved["seed"]
        self._resumed_at = -1 if state is None else state.step
        over = epoch >= given["epochs"]  # FitStep needs a batch even if none is left to train
        position = 0 if over else epoch * self._source.steps + skip
        self._feed = Feed(self._source, self._seed, position)
        self._open.callback(self._feed.close)
        self._step = FitStep(
            model, self._feed, given["class_weight"], self._seed,
            lambda: self._loop.flag(self._watch), self.step_input,
        )  # fmt: skip
        self._open.callback(self._step.close)
        engine = TensorFlowEngine(self.job(self._step, self._source))
        self._loop = prepare(self.folder, self._config, engine, self.options(given), resume_from)
        self._loop.more_state = self._more_state
        if state is None:
            self._loop.state.epoch = epoch
        if self.evaluate is None:  # Keras validates only at the end of an epoch
            self._loop.state.evaluate_due = False
        self._step.begin(skip, float(self._saved["loss_sum"]))
        rates = _rates(model) if skip else []
        self._within_epoch = list(zip(rates, backend.K.batch_get_value(rates)))
        if skip and len(self._saved["metrics"]) == len(_metric_variables(model)):
            self._within_epoch += zip(_metric_variables(model), self._saved["metrics"])

    def _more_state(self) -> Dict[str, Any]:
        within = self._loop.state.step_in_epoch > 0
        metrics = backend.K.batch_get_value(_metric_variables(self._step.model)) if within else []
        return {
            "fit": {
                "seed": self._seed,
                "monitor": self._loop.options.monitor,
                "loss_sum": float(self._step.loss_sum) if within else 0.0,
                "metrics": [value.tolist() for value in metrics],
                "callbacks": self._others.state() if self._others else self._saved["callbacks"],
            }
        }

    _others: Optional[Others] = None

    def others_began(self, others: Sequence[Any]) -> None:
        """Restore the state of the other callbacks, after their ``on_train_begin``."""
        self._others = Others(others)
        self._others.restore(self._saved["callbacks"])
        if self._step.skip:
            self._others.silence()
        if self._others.early_stopped:
            note("EarlyStopping has already ended this run")
            self.model.stop_training = True
        if self._loop.over:
            self.model.stop_training = True

    def _rejoin(self) -> None:
        """Undo what Keras and callbacks changed at the start of an epoch that is resumed."""
        backend.K.batch_set_value(self._within_epoch)
        assert self._others is not None
        self._others.rejoin(self._saved["callbacks"])

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise AmpXlaError unless Keras' graph-mode ``fit`` is running."""
        if not self.in_fit:
            raise AmpXlaError(
                f"{type(self.model).__name__}.fit is not Keras' fit of a graph model: import "
                f"amp_xla.setup first, and call model.fit(..., callbacks=[Run(...)])"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the sum of the epoch's losses to 0."""
        if not self._step.skip:
            self._step.begin(0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the step number."""
        self._step.number = self._loop.state.step

    def after_batch(self, logs: Mapping[str, Any]) -> None:
        """Log the step; evaluate, save and stop if due. Called after all other callbacks."""
        step, loop = self._step, self._loop
        if step.skip:
            step.skip -= 1
            if not step.skip:
                self._rejoin()
            return
        if self.model.train_function is not step:
            raise AmpXlaError(
                "some batches have sample weights and the first one has none; give weights to all"
            )
        result = step.result(logs["loss"])
        loop.engine.remember(step.fed, step.number, step.masks)
        loop.after_step(result, self.samples(int(logs["size"])), self._source.steps)
        if self.evaluate or not loop.state.evaluate_due:
            loop.between(self._watch, result.flags)
        if loop.over:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the logs over ranks; add ``loss_scale`` and ``skipped_steps``."""
        logs = {} if logs is None else logs
        if self._ranks.several:
            values = self._ranks.gather({name: float(value) for name, value in logs.items()})
            logs.update((name, np.mean([each[name] for each in values])) for name in logs)
        logs["loss_scale"], logs["skipped_steps"] = self._step.scale, self._loop.state.skipped

    def after_epoch(self, logs: Mapping[str, Any]) -> None:
        """Read the values of Keras' validation, and save. Called after all other callbacks."""
        loop, model = self._loop, self.model
        model.stop_training = any(self._ranks.gather(bool(model.stop_training)))
        if loop.state.evaluate_due:
            self._validation = {n[4:]: float(v) for n, v in logs.items() if n.startswith("val_")}
            if self._validation:
                self._choose_monitor()
            else:
                loop.state.evaluate_due = False
                loop.save()
            loop.between(self._watch, [1])
        if loop.over:
            model.stop_training = True

    def _choose_monitor(self) -> None:
        name = self._loop.options.monitor
        if name in self._validation:
            return
        if self._monitor is not None:
            raise AmpXlaError(
                f"Run(monitor={self._monitor!r}): the epoch logs have no such value; allowed: "
                f"{', '.join(f'val_{name}' for name in self._validation)}"
            )
        name = next(iter(self._validation))
        self._loop.options = dataclasses.replace(
            self._loop.options, monitor=name, higher_is_better=_higher_is_better(name)
        )
        run_metadata.write_status(self._loop, "running")

    def _end(self) -> None:
        state = self._loop.state
        if self._resumed_at == state.step:
            note(f"{self.folder.path} is complete: {state.epoch} epochs; more epochs continue it")
            return
        self._loop.save_if_needed()
        self._loop.checkpoints.wait()
        report(self._loop, time.monotonic() - self._began)
        self._watch.check("after the last step; the run is complete")


class _Last(keras.callbacks.Callback):
    """The last callback: calls ``Run`` after all other callbacks."""

    def __init__(self, run: Run, others: Sequence[Any]) -> None:
        super().__init__()
        self._run, self._others = run, others

    def on_train_begin(self, logs: Any = None) -> None:
        self._run.others_began(self._others)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._run.after_batch(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._run.after_epoch(logs)


def _rates(model: Any) -> List[Any]:
    """Return the optimizer's hyper-parameters, which callbacks set at the start of an epoch."""
    inner = getattr(model.optimizer, "inner", model.optimizer)
    return [v for v in getattr(inner, "_hyper", {}).values() if hasattr(v, "read_value")]


def _metric_variables(model: Any) -> List[Any]:
    """Return the variables of Keras' metrics, which are set to 0 at the start of an epoch."""
    return [variable for metric in model.metrics for variable in metric.weights]


def _higher_is_better(name: str) -> bool:
    return not any(word in name.lower() for word in _LOWER)
