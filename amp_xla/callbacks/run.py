"""The callback ``Run``, which calls the training loop of the recipes between Keras' batches."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.callbacks import data, description, random_states
from amp_xla.callbacks.evaluating import StateBefore
from amp_xla.callbacks.script_state import ScriptState, of_version_0_1
from amp_xla.callbacks.step import FitStep, check, job, metric_variables
from amp_xla.config import fields
from amp_xla.errors import AmpXlaError, RankLost
from amp_xla.process import output
from amp_xla.process.progress import note
from amp_xla.process.stopping import SignalWatch, Stopped, ending
from amp_xla.training import distributed
from amp_xla.training.checkpoint import CheckpointError
from amp_xla.training.engine import fitting
from amp_xla.training.job import TensorFlowEngine
from amp_xla.training.launch import newest, prepare, report
from amp_xla.training.loop import Content, Loop
from amp_xla.training.options import Intervals, LoopOptions, RunOptions
from amp_xla.training.run import ScriptFolder
from amp_xla.training.state import LoopState

# State of ``fit`` in a checkpoint, at the start of a new run.
_NEW: Dict[str, Any] = {
    "seed": None, "initial_epoch": 0, "monitor": "loss", "losses": [0.0, 0], "metrics": [],
    "callbacks": [], "ended": False, "state": {}, "ranks": [],
}  # fmt: skip
_ENDED: Dict[Path, Any] = {}  # folder of a run that this process has ended -> its model, weakly
# Callbacks that write files. With several ranks, only the first rank calls them.
_WRITERS = ("ModelCheckpoint", "CSVLogger", "TensorBoard")


class Run(keras.callbacks.Callback):
    """A callback that gives ``fit`` a run folder, checkpoints and an exact resume.

    It may be anywhere in the list of callbacks. ``fit`` begins with the first batch, or with the
    batch after the newest checkpoint. The data are a ``keras.utils.Sequence``, a generator or NumPy
    arrays. Their order depends on the run's seed, which is drawn from ``numpy.random`` when the run
    begins. ``Run`` adds ``loss_scale`` and ``skipped_steps`` to the logs of each epoch.

    Args:
      folder: path of the run folder, such as ``runs/ner``.
      resume: continue from the newest whole checkpoint in ``folder``, if there is one.
      monitor: name of the validation value that decides which checkpoint is best, with or without
        ``val_``; None = ``val_loss``, or without it the first ``val_`` value. Lower is better if
        the name contains loss, error, entropy, mae, mse, perplexity or ppl.
      checkpoint_every: steps between checkpoints; a checkpoint waits until the one before it is on
        disk. 0 = only after each epoch and every 10 minutes.
      keep: number of newest checkpoints to keep, besides the best one.
      on_nonfinite: what to do at a step that is not finite: ``skip`` it; skip it and ``report`` the
        first operation that was not finite; or ``stop``. Only a ``LossScaleOptimizer`` skips.
      log_every: steps between lines of metrics.jsonl.
      force_resume: with ``resume``, continue even if data, settings or versions differ.

    Raises:
      AmpXlaError, OSError: the folder already has a run and ``resume`` is False; the folder cannot
        be used; or an argument is out of range.
    """

    def __init__(
        self,
        folder: Union[str, Path],
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
        self._config = description.Script(RunOptions(**options))
        self._monitor, self._log_every = monitor, log_every
        # Absolute, because the script may change its folder.
        place = Path(os.path.abspath(str(Path(folder).expanduser())))
        output.check_name(str(place))
        self._opened = functools.partial(ScriptFolder, place, resume, distributed.current().first)
        self.folder = self._opened()
        self.folder.close()  # ``fit`` may never come
        self._open = contextlib.ExitStack()
        self.in_fit = self._within = False
        self._validation: Dict[str, float] = {}
        self._missing: Optional[str] = None  # what is wrong with the monitor
        self._before: Any = None
        self._step: Any = None
        self._loop: Any = None

    def fit(self, fit: Callable[..., Any], model: Any, given: Dict[str, Any]) -> Any:
        """Call Keras' ``fit`` or ``fit_generator`` with this callback; return its result.

        Args:
          fit: the method of the model's class.
          model: a compiled model.
          given: all arguments of ``fit`` by name.

        Raises:
          KeyboardInterrupt, SystemExit: after a signal or a lost rank; see ``stopping.ending``.
          AmpXlaError: model, data, checkpoint or ``Run`` cannot be used, or training must stop.
        """
        if self._loop:
            raise AmpXlaError(
                f"the Run of {self.folder.path} has ended; create a new Run for another fit"
            )
        self.in_fit = True
        try:
            with self._open:
                try:
                    history = fit(model, **self._begin(model, given))
                except Stopped:
                    before = self._before and self._before.release()
                    if before is None:
                        raise
                    raise self._loop.stopped(self._watch, before) from None
                self._end()
            if self._resumed_at != self._loop.state.step:
                report(self._loop, time.monotonic() - self._began)  # the page exists now
            return history
        except (Stopped, RankLost) as stopped:
            # Rank 0 may be the one that was lost.
            note(str(stopped), ranks=2 if isinstance(stopped, RankLost) else 1)
            raise ending(stopped) from None
        finally:
            self.in_fit = False

    def _begin(self, model: Any, given: Dict[str, Any]) -> Dict[str, Any]:
        """Prepare a new or a resumed run; return the changed arguments of ``fit``."""
        self.folder = self._opened()
        self._open.callback(self.folder.close)
        self._watch = self._open.enter_context(SignalWatch())
        with self._watch.nothing_to_save("before the first step; nothing was lost", at_once=False):
            self._prepare(model, given)
        self._open.enter_context(self._loop.running(self._watch))
        if given["verbose"] in (1, "auto"):
            self._loop.progress.hide()
        self._began = time.monotonic()
        others = [callback for callback in given["callbacks"] if callback is not self]
        if not self._ranks.first:
            others = [other for other in others if type(other).__name__ not in _WRITERS]
        description.name_emptied(others)
        if inspect.isgenerator(given["validation_data"]):
            batches = self._validated.batches(self._seed + 1, self._validated.read)
            given["validation_data"] = random_states.apart(batches)
        last = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: self._others_began(others, given["validation_data"]),
            on_batch_end=lambda batch, logs: self._after_batch(logs),
            on_epoch_end=lambda epoch, logs: self._after_epoch(logs),
        )
        return {
            **self._feed.arguments(given),
            "initial_epoch": self._epoch,
            "callbacks": [self, *others, last],
            "verbose": given["verbose"] if self._ranks.first else 0,
        }

    def _prepare(self, model: Any, given: Dict[str, Any]) -> None:
        check(model)
        self._ranks = distributed.current()
        self._resume_from = resume_from = newest(self.folder, self._ranks)
        new = {"initial_epoch": int(given["initial_epoch"])}
        saved = resume_from.state.get("fit", {}) if resume_from else new
        self._saved = {**_NEW, **of_version_0_1(saved)}
        self._source: Any = data.source(model, given, self._saved["initial_epoch"])
        self._arrays = resume_from.more_tensors() if resume_from else {}
        ranks = dict(enumerate(self._saved["ranks"]))
        self._mine = ranks.get(self._ranks.world.rank, {})  # there may have been fewer ranks
        self._saved["state"] = {**self._saved["state"], **self._mine.get("state", {})}
        self._losses = list(self._saved["losses"])
        read_before = self._mine.get("validation", 0)
        self._validated = data.Generator(given["validation_data"], data.ONE_EPOCH, read_before)
        self._classes = [type(o).__name__ for o in given["callbacks"] if o is not self]
        self._ended = bool(self._saved["ended"]) and self._classes == self._saved["callbacks"]
        state = resume_from.loop if resume_from else LoopState(epoch=new["initial_epoch"])
        epoch, skip, steps = state.epoch, state.step_in_epoch, self._source.steps
        if state.evaluate_due:
            epoch, skip = epoch - 1, steps  # all that is left of the epoch is its end
        drawn = self._ranks.from_first(lambda: int(np.random.randint(2**31 - 1)))
        self._seed = drawn if self._saved["seed"] is None else self._saved["seed"]
        self._resumed_at = -1 if resume_from is None or state.evaluate_due else state.step
        self._monitor = description.known_monitor(self._monitor, model, given, self)
        self._epoch, position = epoch, epoch * steps + skip
        read = self._source.identity(self._seed)
        read = {} if self._ranks.several else read  # ranks have different data
        script = description.describe(model, {**read, "class_weight": given["class_weight"]})
        self._feed: Any = self._source
        if not isinstance(self._source, data.Arrays):  # Keras itself cuts batches of arrays
            end = position if self._ended else given["epochs"] * steps
            self._feed = data.Feed(self._source, self._seed, position, skip, end, self._mine)
        self._open.callback(self._feed.close)
        self._step = FitStep(
            model, self._feed, given["class_weight"], self._seed,
            lambda: self._loop.flag(self._watch),
        )  # fmt: skip
        self._open.callback(self._step.close)
        name = self._monitor or f"val_{self._saved['monitor']}"
        name = name[len("val_") :] if name.startswith("val_") else name
        better = description.higher_is_better(name)
        options = LoopOptions(0, self._log_every, given["epochs"], name, better)
        engine = TensorFlowEngine(job(model, self._step, steps, lambda: self._validation, script))
        engine.skips = self._step.skips
        self._variables = len(tf.global_variables())
        self._built = engine.variables.snapshot() if resume_from else {}
        description.check_names(resume_from, model)
        try:
            loop = Loop(self.folder, engine, options, self._config)
            self._loop = prepare(loop, resume_from)
        except CheckpointError as error:
            if self.folder.path not in _ENDED:
                raise
            raise CheckpointError(f"{error}; {description.IN_A_LOOP}") from error
        if resume_from and _ENDED.get(self.folder.path, lambda: None)() is model:
            ended = fitting(resume_from, engine.variables.shapes())
            description.name_changed(ended, self._built, "since the last fit")
        self._loop.more = self._more
        self._before = StateBefore(self._loop, self._watch)
        if resume_from is None:
            self._loop.state.epoch = epoch
        else:  # callbacks begin with the model of the script, as they did in the new run
            engine.variables.assign(self._built)
        self._step.number, self._step.skip = self._loop.state.step, skip

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise AmpXlaError unless Keras' graph-mode ``fit`` is running."""
        if not self.in_fit:
            raise AmpXlaError(
                f"{type(self.model).__name__}.fit is not Keras' fit of a graph model: import "
                f"amp_xla.setup first, and call model.fit(..., callbacks=[Run(...)])"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Put arrays in the epoch's order; start a new sum of losses, except in a resumed epoch."""
        self._feed.begin_epoch(self._seed, epoch)
        self._continued = self._step.skip > 0
        if not self._continued:
            self._losses = [0.0, 0]

    def _others_began(self, others: Sequence[Any], validation: Any) -> None:
        """Restore callbacks, variables and random states, after all ``on_train_begin``."""
        data_read = [getattr(self._source, "sequence", None), validation]
        data_read = data_read if self._ranks.first else []  # other ranks may have other rows
        objects = description.objects(self.model, self._step, data_read)
        self._others = ScriptState(
            others, objects, self._loop.engine.variables.shapes(), self._saved, self._arrays
        )
        self._others.restore(last=False)
        if self._resume_from:
            engine, built, self._built = self._loop.engine, self._built, {}
            description.name_changed(built, engine.variables.snapshot(), "in on_train_begin")
            self._restore()
        if self._step.skip:
            self._silence = self._others.silence()
        else:
            self._feed.compare()
            self._others.restore()  # reading may have changed it
        if self._ended:
            note("a callback, e.g. EarlyStopping, ended this run; remove this callback to continue")
        self.model.stop_training |= self._ended or self._loop.over

    def _restore(self) -> None:
        """Restore the checkpoint's variables and the states of ``numpy.random`` and ``random``."""
        self._loop.engine.restore(self._resume_from)
        if self._mine:
            random_states.set_random_state(self._mine["random"])

    def _after_batch(self, logs: Mapping[str, Any]) -> None:
        """Log the step; save and stop if due. Called after all other callbacks."""
        step, loop = self._step, self._loop
        if step.skip:
            step.skip -= 1
            if not step.skip:  # undo what Keras and callbacks changed at the start of the epoch
                self._restore()
                metrics = metric_variables(step.model)
                if len(self._saved["metrics"]) == len(metrics):
                    backend.K.batch_set_value(list(zip(metrics, self._saved["metrics"])))
                self._silence.close()
                self._others.restore(last=False)
                self._feed.compare()
                self._others.restore()  # reading may have changed it
                self._before.take()
            return
        size = int(logs["size"])
        self._losses = [float(self._losses[0] + logs["loss"] * size), self._losses[1] + size]
        result = step.result(logs["loss"])
        loop.engine.remember(step.fed, step.number, step.masks)
        loop.after_step(result, size, self._source.steps)
        self._within = bool(self.model.stop_training)  # before the callbacks of the epoch's end
        step.number = loop.state.step
        if not loop.state.evaluate_due:
            loop.between(self._watch, result.flags)
        self._before.take()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop Keras' validation after a signal."""
        if self.in_fit:
            self._before.check()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the logs over ranks; add ``loss_scale`` and ``skipped_steps``."""
        if self._continued and self._losses[1]:  # Keras has not seen the first part of the epoch
            logs["loss"] = self._losses[0] / self._losses[1]
        if self._ranks.several:
            values = self._ranks.gather({name: float(value) for name, value in logs.items()})
            logs.update((name, np.mean([each[name] for each in values])) for name in logs)
        logs["loss_scale"], logs["skipped_steps"] = self._step.scale, self._loop.state.skipped

    def _after_epoch(self, logs: Mapping[str, Any]) -> None:
        """Read the values of Keras' validation, and save. Called after all other callbacks."""
        loop, model = self._loop, self.model
        self._before.release()
        votes: List[Any] = self._ranks.gather([bool(model.stop_training), self._within])
        model.stop_training = any(stop for stop, _ in votes)
        # A stop before an epoch's end, such as for a time limit, may be continued.
        self._ended = model.stop_training and not any(within for _, within in votes)
        description.name_shortened(loop, model)
        if loop.state.evaluate_due:
            self._validation = {n[4:]: float(v) for n, v in logs.items() if n.startswith("val_")}
            if not self._validation:
                loop.state.evaluate_due = False
                loop.save()
            else:
                self._missing = description.choose_monitor(
                    loop, self._monitor, self._validation, self._missing
                )
                loop.evaluate(self._watch)
            loop.between(self._watch, [1])
        if loop.over:
            model.stop_training = True

    def _more(self) -> Content:
        """Return what a checkpoint stores about Keras and other callbacks: fields and arrays."""
        arrays: Dict[str, np.ndarray] = {}
        state = self._loop.state
        within = state.step_in_epoch > 0 or state.evaluate_due
        self._variables = description.name_late(self._variables)
        metrics = backend.K.batch_get_value(metric_variables(self._step.model)) if within else []
        read = self._feed.state(not state.step_in_epoch)
        read.update(random=random_states.random_state(), validation=self._validated.read)
        changed = self._others.changed(arrays)
        if not self._ranks.first:  # arrays are the first rank's
            read["state"] = {n: t for n, t in changed["state"].items() if '"array"' not in t}
        fit = {
            "seed": self._seed,
            "initial_epoch": self._saved["initial_epoch"],
            "monitor": self._loop.options.monitor,
            "losses": self._losses if within else [0.0, 0],
            "metrics": [value.tolist() for value in metrics],
            "callbacks": self._classes,
            **changed,
            "ended": self._ended,
            "ranks": self._ranks.gather(read),
            "weights": [weight.op.name for weight in self._step.model.weights],
        }
        return {"fit": fit}, arrays

    def _end(self) -> None:
        state = self._loop.state
        path, complete = self.folder.path, self._resumed_at == state.step
        words = f"{path} is complete: {state.epoch} epochs; more epochs continue it"
        if self._ended:
            words = f"{path} was ended by a callback after {state.epoch} epochs"
        if complete and path in _ENDED:
            raise AmpXlaError(f"{words}; {description.IN_A_LOOP}")
        _ENDED[path] = weakref.ref(self._step.model)
        if complete:
            note(words)
            return
        self._loop.save_if_needed()
        self._loop.finish_writing()
        description.name_unfinished(self._loop, self._ended)
        if self._missing:
            raise AmpXlaError(self._missing)
        self._watch.check("after the last step; the run is complete")
