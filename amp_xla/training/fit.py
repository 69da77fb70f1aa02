"""Keras' ``model.fit`` as a run: its callback does between two batches what the loop does.

Order of batches, state, run folder, metrics, checkpoints and stops are those of
``amp_xla.training.loop``; forward, backward and update are Keras'.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from amp_xla.backend import keras, tf
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed
from amp_xla.process.stopping import SignalWatch
from amp_xla.training.job import Job
from amp_xla.training.loop import Loop
from amp_xla.training.step import StepResult

FED = ("token_ids", "segment_ids")


class FitStep:
    """A compiled Keras model, seen as the loop sees a training step.

    Args:
      model: int token ids and segment ids [B, L] -> float32 logits [B, classes].
      step_input: placeholder of the step number, see ``dropout.install``.
      loss: (labels, logits) -> float32 [B].
      optimizer: ``amp_xla.precision.compat.keras.LossScaleOptimizer``.
      rate: int64 scalar tensor, updates so far -> learning rate, float32 scalar.
    """

    def __init__(
        self,
        model: Any,
        step_input: Any,
        loss: Callable[[Any, Any], Any],
        optimizer: Any,
        rate: Callable[[Any], Any],
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.metric_names = ["accuracy"]
        self.variables: List[Any] = model.trainable_weights
        self.executed: Optional[executed.ExecutedGraph] = None
        self._step_input, self._step = step_input, {step_input: 0}
        model.compile(optimizer, loss=loss, feed_dict=self._step)
        # Keras creates the optimizer's variables in the first batch, too late to restore them from
        # a checkpoint, and creates them again when the first weighted batch arrives.
        model._update_sample_weight_modes(sample_weights=[np.ones(1)])
        model._make_train_function()
        self.train_op = model.train_function.updates_op
        self.learning_rate = rate(optimizer.iterations.read_value())
        with tf.control_dependencies([self.train_op]):
            # Keras counts a skipped step too: this was the rate of the one just taken.
            taken = rate(optimizer.iterations.read_value() - 1)
            applied = optimizer.applied_steps.read_value()
        self._fetched: Dict[str, Any] = {}
        fetches = {
            "logits": model.output,
            "learning_rate": taken,
            "loss_scale": optimizer.loss_scale,
            "finite": optimizer.gradients_finite,
            "gradient_norm": optimizer.gradient_norm,
            "applied": applied,
        }
        for name, tensor in fetches.items():
            fetch = tf.identity(tensor)
            model.train_function.fetches.append(fetch)
            model.train_function.fetch_callbacks[fetch] = self._keeper(name)
        self._watch_executed()

    def _keeper(self, name: str) -> Callable[[Any], None]:
        def keep(value: Any) -> None:
            self._fetched[name] = value

        return keep

    def _watch_executed(self) -> None:
        function = self.model.train_function
        function.run_options = tf.RunOptions(output_partition_graphs=True)
        function.run_metadata = tf.RunMetadata()

    def feed(self, batch: Any) -> Dict[str, Any]:
        """Return the model's inputs by name."""
        return {name: batch[name] for name in FED}

    def keras_batch(self, batch: Any) -> Tuple[List[Any], Any, Any]:
        """Return inputs, labels and weights for ``fit``.

        Keras divides by the number of rows. The weights are scaled so that padding rows count
        nothing and the loss is the mean over the other rows.
        """
        weights = batch["weights"]
        weights = weights * (len(weights) / max(float(weights.sum()), 1e-6))
        return list(self.feed(batch).values()), batch["labels"], weights

    def begin(self, step: int) -> None:
        """Set the step, from 0 over the whole run; call it before each batch."""
        self._step[self._step_input] = step

    def result(self, batch: Any, loss: float) -> StepResult:
        """Return the result of the step over ``batch``; ``loss`` is from Keras."""
        function = self.model.train_function
        if self.executed is None:
            self.executed = executed.count(function.run_metadata.partition_graphs)
            function.run_options = function.run_metadata = None
            function._callable_fn = None  # else Keras keeps calling the traced one
        fetched = self._fetched
        hits = (fetched["logits"].argmax(-1) == batch["labels"]) * batch["weights"]
        return StepResult(
            float(loss), float(fetched["learning_rate"]), float(fetched["loss_scale"]),
            bool(fetched["finite"]), float(fetched["gradient_norm"]), int(fetched["applied"]),
            (float(hits.sum() / max(float(batch["weights"].sum()), 1e-6)),),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FitJob(Job):
    """A job whose step is a ``FitStep``; ``policy`` is the name of the model's Keras policy."""

    step: Any  # a FitStep
    policy: str = "float32"

    def verify(self, found: executed.ExecutedGraph) -> None:
        """Compare the executed graph with the policy.

        Raises:
          NothingConvertedError, UnsupportedError: it ran something else.
        """
        half = self.policy.replace("mixed_", "")
        mixed = half != self.policy
        executed.verify(
            found, "amp" if mixed else "fp32", half if mixed else None,
            f"by its Keras policy {self.policy}", self.resolved.settings.xla,
        )  # fmt: skip


class Between(keras.callbacks.Callback):
    """Metrics, evaluation, checkpoints and signals between two batches of ``fit``."""

    def __init__(self, loop: FitLoop, steps: int, watch: SignalWatch) -> None:
        super().__init__()
        self._loop, self._steps, self._watch = loop, steps, watch
        self._step: FitStep = loop.engine.job.step
        self._batch: Any = None

    def inputs(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield what ``fit`` takes of each batch."""
        for self._batch in batches:
            yield self._step.keras_batch(self._batch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._step.begin(self._loop.state.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        result = self._step.result(self._batch, logs["loss"])
        self._loop.after_step(result, self._batch, self._steps, self._watch)
        self.model.stop_training = self._loop.over


class FitLoop(Loop):
    """The loop with Keras' ``fit`` inside, once per epoch: a resumed one has fewer batches."""

    def _epoch(self, watch: SignalWatch) -> None:
        state, batches, step = self.state, self.engine.job.batches, self.engine.job.step
        steps = batches.steps_per_epoch(state.epoch)
        if state.step_in_epoch >= steps:
            raise AmpXlaError(f"epoch {state.epoch + 1} has {steps} batches: nothing to train on")
        between = Between(self, steps, watch)
        step.model.fit(
            between.inputs(batches.epoch(state.epoch, start=state.step_in_epoch)),
            steps_per_epoch=steps - state.step_in_epoch, initial_epoch=state.epoch,
            epochs=state.epoch + 1, callbacks=[between], verbose=0, workers=0,
        )  # fmt: skip
