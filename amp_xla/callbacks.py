"""Keras' ``model.fit`` as a run of this project, by one callback.

    model.fit(..., callbacks=[amp_xla.callbacks.Run("runs/ner", resume=True)])

Forward, backward and update are Keras'. Between two batches the callback does what the training
loop of the recipes does: run folder, metrics, evaluation, checkpoints, exact resume, orderly stops.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Union

import numpy as np

from amp_xla.backend import configuring, keras, tf
from amp_xla.data.batches.protocol import Batch, sample_count
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed
from amp_xla.process.progress import note
from amp_xla.process.stopping import SignalWatch, Stopped
from amp_xla.training.engine import StepResult
from amp_xla.training.job import Job
from amp_xla.training.launch import TensorFlow, prepare, report
from amp_xla.training.loop import Loop
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import RunFolder

Convert = Callable[[Batch], Any]
Metrics = Callable[[Batch, Any], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class _Script:
    """Configuration of a script without flags."""

    run: RunOptions = RunOptions()


class Run(keras.callbacks.Callback):
    """A run folder, checkpoints and an exact resume for ``model.fit``, in one process.

    ``fit`` trains from the first batch of a new run, or from the batch after the newest checkpoint:
    its data, such as a ``keras.utils.Sequence``, must have the same batches in the same order;
    ``workers=0`` keeps it. The logs of each epoch also have ``loss_scale`` and ``skipped_steps``.

    Args:
      folder: the run's folder, such as ``runs/ner``, or a ``RunFolder``.
      resume: continue from the newest whole checkpoint in ``folder``, if there is one.
      sample_weights: the batches have sample weights.
      config: a frozen dataclass with ``run: RunOptions``, saved and compared on resume.
      options: intervals and early stopping; by default once per epoch, the lowest loss is best.
      batches: a ``BatchSource`` to train on by ``fit(run.feed(...))``; None = fit has its own data.
      evaluate: returns dev metrics by name; None = Keras' ``validation_data``.
      metric_names: names of what ``metrics`` returns.
      metrics: (batch, outputs of the model) -> values to log; only with ``batches``.
      assets: file name -> function that writes it into a path: files needed for prediction.
      identity: hashes of the data, compared on resume.
      step_input: placeholder of the step number, see ``dropout.install``.

    Raises:
      AmpXlaError: the folder holds a run already, or cannot be used.
    """

    def __init__(
        self,
        folder: Union[str, RunFolder],
        resume: bool = False,
        sample_weights: bool = False,
        config: Any = None,
        options: Optional[LoopOptions] = None,
        batches: Any = None,
        evaluate: Optional[Callable[[], Mapping[str, float]]] = None,
        metrics: Optional[Metrics] = None,
        metric_names: Any = (),
        assets: Optional[Mapping[str, Callable[[str], None]]] = None,
        identity: Optional[Dict[str, str]] = None,
        step_input: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(folder, RunFolder):
            path = Path(folder)
            folder = RunFolder(path.parent.name, path.name, str(path.parent.parent), resume)
        self.folder, self._sample_weights = folder, sample_weights
        self._config, self._options = config or _Script(RunOptions(resume=resume)), options
        self._batches: Any = batches
        self._evaluate = evaluate
        self._metrics, self._metric_names = metrics, list(metric_names)
        self._assets, self._identity = dict(assets or {}), dict(identity or {})
        self._step_input = step_input
        self._open = contextlib.ExitStack()
        self._batch: Any = None
        self._step: Any = None
        self._validation: Dict[str, float] = {}

    def feed(self, convert: Convert) -> Iterator[Any]:
        """Yield the training batches for ``fit``, which takes them with ``workers=0``.

        Args:
          convert: batch -> inputs, labels and weights.
        """
        # fit counts the batches of a resumed epoch from its first; the trained ones are not built.
        state, again = self._loop.state, self._step.skip
        for epoch in range(state.epoch, self._loop.options.epochs):
            for batch in self._batches.epoch(epoch, start=state.step_in_epoch):
                self._batch = batch
                for _ in range(1 + again):
                    yield convert(batch)
                again = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Check everything, restore the checkpoint of a resumed run, and open the run folder."""
        with self._ending_at_errors():
            self._open.callback(self.folder.close)
            self._watch = self._open.enter_context(SignalWatch())
            with self._watch.immediately("before the first step; nothing was lost", True):
                self._loop = self._prepare()
            self._open.enter_context(self._loop.running(self._watch))
            self._began = time.monotonic()
        state = self._loop.state
        self._step.skip = self._skipped = state.step_in_epoch
        begun = state.epoch
        # Keras calls it after this method, and also for each validation.
        self.model._maybe_load_initial_epoch_from_ckpt = lambda first, mode: (
            begun or first if mode == "train" else first
        )
        self.model.stop_training = self._loop.over

    def _prepare(self) -> Loop:
        if not self.params.get("steps"):
            raise AmpXlaError(
                "Run needs batches in a fixed order: a keras.utils.Sequence, or a generator with "
                "steps_per_epoch; fit shuffles arrays in an order that no resume can repeat"
            )
        options = self._options or LoopOptions(
            epochs=self.params["epochs"], monitor="loss", higher_is_better=False
        )
        self._step = FitStep(
            self.model, self._sample_weights, self._step_input, self._metric_names,
            self._ending_at_errors,
        )  # fmt: skip
        batches: Any = self._batches or _Steps(self.params["steps"])
        job = FitJob(
            self.model, self._step, batches, self._evaluate or (lambda: self._validation),
            self._assets, configuring.current(), self._identity,
        )  # fmt: skip
        newest = self.folder.newest()
        loop = prepare(self.folder, self._config, TensorFlow.engine(job), options, newest)
        if self._evaluate is None:  # Keras' validation after the last step of an epoch is lost
            loop.state.evaluate_due = False
        return loop

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the step number."""
        self._step.number = self._loop.state.step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Log the step; evaluate, save and stop if due."""
        step, loop = self._step, self._loop
        if step.skip:
            step.skip -= 1
            return
        with self._ending_at_errors():
            if self.model.train_function is not step:
                raise AmpXlaError(
                    "Run(sample_weights=...) does not fit the batches: True if they have weights"
                )
            samples = int(logs["size"]) if self._batch is None else sample_count(self._batch)
            values = self._metrics(self._batch, step.outputs) if self._metrics else {}
            result = step.result(logs["loss"], [values[name] for name in self._metric_names])
            loop.after_step(result, samples, self.params["steps"])
            if self._evaluate or not loop.state.evaluate_due:
                loop.between(self._watch)
        if loop.over:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save; take the values of Keras' validation; add to the logs."""
        loop, logs = self._loop, {} if logs is None else logs
        if self._skipped:  # their loss was counted as 0
            steps = self.params["steps"]
            logs["loss"] = logs["loss"] * steps / (steps - self._skipped)
            self._skipped = 0
        logs["loss_scale"], logs["skipped_steps"] = self._step.scale, loop.state.skipped
        if loop.state.evaluate_due:
            self._validation = {n[4:]: float(v) for n, v in logs.items() if n.startswith("val_")}
            with self._ending_at_errors():
                if not self._validation:
                    loop.state.evaluate_due = False
                    loop.save()
                loop.between(self._watch)
        if loop.over:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Save what is not saved yet, and close the run folder."""
        with self._ending_at_errors():
            self._loop.save_if_needed()
            seconds = time.monotonic() - self._began
            self._open.close()
            self.model.train_function = self._step.function
            report(self._loop, seconds)
            self._watch.check("after the last step; the run is complete")

    @contextlib.contextmanager
    def _ending_at_errors(self) -> Iterator[None]:
        """Close the run if the block raises; a signal ends the process with its exit code."""
        try:
            yield
        except BaseException as error:
            try:
                self._open.__exit__(*sys.exc_info())
                raise
            except Stopped as stopped:
                note(str(stopped))
                raise SystemExit(stopped.exit_code) from error


class FitStep:
    """The train function of a compiled Keras model, seen as the loop sees a training step.

    Args:
      model: a compiled model.
      sample_weights: the batches have weights.
      step_input: placeholder of the step number in the model's ``feed_dict``, or None.
      metric_names: names of the metrics that ``result`` gets.
      ending_at_errors: context of each call.
    """

    def __init__(
        self,
        model: Any,
        sample_weights: bool,
        step_input: Any,
        metric_names: List[str],
        ending_at_errors: Callable[[], ContextManager[None]],
    ) -> None:
        optimizer = model.optimizer
        self.model, self.optimizer, self.metric_names = model, optimizer, metric_names
        self.variables: List[Any] = model.trainable_weights
        self.executed: Optional[executed.ExecutedGraph] = None
        self.number, self.skip, self.scale = 0, 0, 1.0
        self.outputs: List[Any] = []
        self._step_input, self._ending_at_errors = step_input, ending_at_errors
        # Keras creates the optimizer's variables in the first batch, too late to restore them from
        # a checkpoint, and creates them again when the first weighted batch arrives.
        if sample_weights:
            model._update_sample_weight_modes(sample_weights=[np.ones(1)] * len(model.outputs))
        model._make_train_function()
        function = self.function = model.train_function
        self.train_op = function.updates_op
        self.learning_rate = _rate(optimizer, 0)
        with tf.control_dependencies([self.train_op]):
            # Keras counts a skipped step too: this was the rate of the one just taken.
            fetches = {"learning_rate": _rate(optimizer, -1)}
            applied = getattr(optimizer, "applied_steps", optimizer.iterations)
            fetches["applied"] = applied.read_value()
        if hasattr(optimizer, "gradients_finite"):
            fetches["loss_scale"] = optimizer.loss_scale
            fetches["finite"] = optimizer.gradients_finite
            fetches["gradient_norm"] = optimizer.gradient_norm
        self._fetched: Dict[str, Any] = {}
        for name, tensor in fetches.items():
            self._fetch(name, tensor)
        for number, output in enumerate(model.outputs):
            self._fetch(str(number), output)
        function.run_options = tf.RunOptions(output_partition_graphs=True)
        function.run_metadata = tf.RunMetadata()
        model.train_function = self

    def _fetch(self, name: str, tensor: Any) -> None:
        fetch = tf.identity(tensor)
        self.function.fetches.append(fetch)
        self.function.fetch_callbacks[fetch] = lambda value: self._fetched.update({name: value})

    def __call__(self, inputs: Any) -> List[Any]:
        """Return what Keras' function does; zeros for a batch that was trained before."""
        function = self.function
        if self.skip:
            return [np.zeros(())] * len(function.outputs)
        if self._step_input is not None:
            function.feed_dict = {self._step_input: self.number}
        with self._ending_at_errors():
            outputs: List[Any] = function(inputs)
        if self.executed is None:
            self.executed = executed.count(function.run_metadata.partition_graphs)
            function.run_options = function.run_metadata = None
            function._callable_fn = None  # else Keras keeps calling the traced one
        self.outputs = [self._fetched[str(i)] for i in range(len(self.model.outputs))]
        return outputs

    def result(self, loss: float, metrics: List[float]) -> StepResult:
        """Return the result of the step just taken; ``loss`` is from Keras."""
        fetched = self._fetched
        self.scale = float(fetched.get("loss_scale", 1.0))
        return StepResult(
            float(loss), float(fetched["learning_rate"]), self.scale,
            bool(fetched.get("finite", math.isfinite(loss))),
            float(fetched.get("gradient_norm", math.nan)), int(fetched["applied"]), tuple(metrics),
        )  # fmt: skip


def _rate(optimizer: Any, steps: int) -> Any:
    """Return the learning rate at the optimizer's iteration plus ``steps``, a scalar tensor."""
    rate = optimizer.learning_rate
    if callable(rate):  # a schedule
        return rate(optimizer.iterations.read_value() + steps)
    return tf.convert_to_tensor(rate)


class FitJob(Job):
    """A job whose step is a ``FitStep``."""

    def verify(self, found: executed.ExecutedGraph) -> None:
        """Compare the executed graph with Keras' policy, or with the settings if it is float32.

        Raises:
          NothingConvertedError, UnsupportedError: it ran something else.
        """
        mixed_precision = getattr(keras, "mixed_precision", None)
        policy = getattr(mixed_precision, "global_policy", None)
        name = policy().name if policy else "float32"
        if name == "float32":
            super().verify(found)
            return
        executed.verify(
            found, "amp", name.replace("mixed_", ""), f"by its Keras policy {name}",
            self.resolved.settings.xla,
        )  # fmt: skip


class _Steps:
    """Batches that only Keras sees."""

    shapes = ()

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def steps_per_epoch(self, epoch: int = 0) -> int:
        return self._steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return iter(())
