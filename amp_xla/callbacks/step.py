"""Keras' train function with the interface of ``TrainStep``, for the training loop."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np

from amp_xla import backend
from amp_xla.backend import configuring, tf
from amp_xla.callbacks import description
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed, training_graph
from amp_xla.models import dropout
from amp_xla.precision.agreement import Reduction
from amp_xla.precision.compat.keras.policy import global_policy
from amp_xla.precision.inner import KerasInner, inner_of, is_keras_own
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.process.progress import note
from amp_xla.training import distributed
from amp_xla.training.engine import StepResult
from amp_xla.training.job import Job
from amp_xla.training.step import counted

_do_run = tf.Session._do_run


def check(model: Any) -> None:
    """Raise AmpXlaError unless ``Run`` can train a model; warn of unsuitable optimizers."""
    if getattr(model, "optimizer", None) is None:
        raise AmpXlaError("the model is not compiled; call model.compile before fit")
    if isinstance(getattr(model, "train_function", None), FitStep):
        raise AmpXlaError("a fit of this model is running with a Run; use no other Run inside it")
    if getattr(model, "_distribution_strategy", None) is not None:
        raise AmpXlaError(
            "Run does not train under a tf.distribute strategy; on several GPUs start the "
            "script with horovodrun, without the strategy (docs/ranks.md)"
        )
    scaled = any(hasattr(part, "loss_scale") for part in description.with_inner(model.optimizer))
    if configuring.current().half == "float16" and not scaled:
        note(
            f"warning: float16 without loss scaling loses small gradients; compile with "
            f"LossScaleOptimizer({type(model.optimizer).__name__}(...))"
        )
    steps = getattr(model.optimizer, "grad_accum_steps", None)
    if steps is not None:  # its update waits for no gradient of the same step
        note(
            f"warning: extend_with_gradient_accumulation changes weights before or after a step's "
            f"forward pass, in no fixed order: two runs differ, and resuming is not exact; use "
            f"LossScaleOptimizer(..., accumulate={steps})"
        )


class FitStep:
    """A replacement of a model's train function; ``close`` restores the original.

    Args:
      model: a compiled model.
      feed: the batches of ``fit``, a ``Feed`` or ``Arrays``.
      class_weight: as given to ``fit``.
      seed: seed of dropout masks.
      flag: function that returns whether this rank has to stop or to save.

    Attributes:
      number: number of the current step.
      skip: number of batches still to skip, because they were trained before the resume.
      whole: the model's own train function: Keras', or a function of the script that wraps it.
    """

    def __init__(
        self, model: Any, feed: Any, class_weight: Any, seed: int, flag: Callable[[], bool]
    ) -> None:
        optimizer = model.optimizer
        self.model, self.optimizer, self.metric_names = model, optimizer, ()
        self.variables: List[Any] = model.trainable_weights
        self.executed: Optional[executed.ExecutedGraph] = None
        self.number, self.skip, self.scale = 0, 0, 1.0
        self.fed: Dict[str, Any] = {}
        self._feed, self._seed, self._flag = feed, seed, flag
        self._ranks = distributed.current()
        self._average_over_ranks()
        # Keras would create the optimizer's variables at the first batch, too late to restore them
        # from a checkpoint, and again at the first batch with sample weights.
        model._update_sample_weight_modes(feed.sample_weights(model, class_weight))
        model._make_train_function()
        self.whole, function = model.train_function, _inside(model)
        if function is None:
            raise AmpXlaError(
                "model.train_function was replaced by a function that does not call Keras' train "
                "function, which Run needs: let the new function call Keras' function"
            )
        self.function = function
        self.train_op = self.updates_op = function.updates_op
        self._own = list(function.inputs), list(function.fetches)
        self._fetched: Dict[str, Any] = {}
        self._adapted: Any = None  # the scale's variable in Keras' own wrapper, which skips steps
        self._add_fetches()
        self.skips = self._adapted is not None or hasattr(optimizer, "gradients_finite")
        function.inputs.append(dropout.step_input())
        if self._ranks.several:
            self._add_figures()
        self.inputs = list(function.inputs)  # code that wraps Keras' train function reads these
        self._options = function.run_options, function.run_metadata  # as given to compile
        function.run_options = tf.RunOptions(output_partition_graphs=True)
        function.run_metadata = tf.RunMetadata()
        vars(function)["_make_callable"] = self._make_callable
        model.train_function = self
        # Keras would build another function after each validation without sample weights.
        vars(model)["_make_train_function"] = self._check_model

    @property
    def masks(self) -> int:
        """The number on which the dropout masks of this step depend."""
        return (self._seed << 31) + self.number

    def _average_over_ranks(self) -> None:
        """Let the optimizer average gradients over ranks.

        Raises:
          AmpXlaError: the optimizer is not a ``LossScaleOptimizer``, or the train function was
            built before, without averages.
        """
        if not self._ranks.several:
            return
        if not isinstance(self.optimizer, LossScaleOptimizer):
            name = type(self.optimizer).__name__
            raise AmpXlaError(
                f"{self._ranks.world.size} ranks train together, but {name} averages no gradients; "
                f"compile with optimizer=LossScaleOptimizer({name}(...)) of "
                f"amp_xla.precision.optimizer; its second argument may be None = no loss scaling"
            )
        inner = inner_of(self.optimizer.inner)
        # Horovod's DistributedOptimizer has its own get_gradients.
        keras_own = is_keras_own(inner.optimizer, "get_gradients")
        averages = isinstance(inner, KerasInner) and not keras_own
        if not averages and self.optimizer._reduce is None:
            self.optimizer._reduce = Reduction(self._ranks.hvd, mean=True)
            if getattr(self.model, "train_function", None) is not None:
                raise AmpXlaError(
                    "the model's train function was built before fit, without averages over ranks; "
                    "create the optimizer as LossScaleOptimizer(..., reduce="
                    "amp_xla.precision.agreement.horovod_mean())"
                )

    def _add_fetches(self) -> None:
        optimizer = self.optimizer
        with tf.control_dependencies([self.train_op]):
            fetches = {"learning_rate": _rate(optimizer)}
            applied = getattr(optimizer, "applied_steps", optimizer.iterations)
            fetches["applied"] = applied.read_value()
        if hasattr(optimizer, "gradients_finite"):
            fetches["loss_scale"] = optimizer.loss_scale
            fetches["finite"] = optimizer.gradients_finite
            fetches["gradient_norm"] = optimizer.gradient_norm
        else:
            parts = description.with_inner(optimizer)
            scale = next(filter(None, (getattr(part, "_loss_scale", None) for part in parts)), 1.0)
            with tf.control_dependencies([self.train_op]):
                self._adapted = getattr(scale, "_current_loss_scale", None)
                if self._adapted is None:
                    scale = scale() if callable(scale) else scale
                    fetches["loss_scale"] = tf.convert_to_tensor(scale, tf.float32)
                else:
                    counter = "_counter" if hasattr(scale, "_counter") else "_num_good_steps"
                    fetches["good_steps"] = getattr(scale, counter).read_value()
                    fetches["loss_scale"] = self._adapted.read_value()
        for name, tensor in fetches.items():
            self._fetch(name, tensor)

    def _add_figures(self) -> None:
        """Let a step also return the mean loss, and how many ranks have to stop or to save."""
        hvd: Any = self._ranks.hvd
        flag = tf.placeholder(tf.float32, [1])
        loss = tf.cast(self.function.outputs[0], tf.float32) / float(self._ranks.world.size)
        figures = tf.concat([tf.reshape(loss, [1]), flag], 0)
        self._fetch("figures", hvd.allreduce(figures, op=hvd.Sum, name="amp_xla_figures"))
        self.function.inputs.append(flag)

    def _fetch(self, name: str, tensor: Any) -> None:
        fetch = tf.identity(tensor)
        self.function.fetches.append(fetch)
        self.function.fetch_callbacks[fetch] = lambda value: self._fetched.update({name: value})

    def __call__(self, inputs: Any) -> List[Any]:
        """Run the step; return the result of Keras' train function, zeros for a skipped batch."""
        function = self.function
        if self.skip:
            return [np.float64(0.0)] + [np.zeros(())] * (len(function.outputs) - 1)
        if len(inputs) != len(self._own[0]):
            raise AmpXlaError(
                "some batches have sample weights and others have none; give weights to all"
            )
        values = [*inputs, self.masks]
        if self._ranks.several:
            values.append(np.array([self._flag()], np.float32))
        scale = None if self._adapted is None else backend.K.get_value(self._adapted)
        if self.whole is function:  # a wrapper's own code may draw random numbers, too
            self._feed.read_ahead()
        try:
            outputs: List[Any] = self.whole(values)
        except tf.errors.OpError as error:
            if self._ranks.several and "horovod" in str(error).lower():
                raise self._ranks.lost(error) from error
            raise
        finally:
            self._feed.wait()
        if scale is not None:  # Keras skipped the step if its count is 0 and the scale did not grow
            fetched = self._fetched
            fetched["finite"] = fetched["good_steps"] > 0 or fetched["loss_scale"] > scale
            fetched["loss_scale"] = scale
        if self.executed is None:
            fetches = [*function.outputs, *function.fetches, function.updates_op]
            self.executed = counted(function.run_metadata, backend.session(), fetches)
            function.run_options, function.run_metadata = self._options
        fed = zip(function.inputs, inputs)  # without Keras' learning phase, a bool
        self.fed = {t.op.name: value for t, value in fed if t.dtype.base_dtype != tf.bool}
        if self._ranks.several:
            outputs = [self._fetched["figures"][0], *outputs[1:]]
        return outputs

    def _make_callable(self, feeds: List[Any], symbols: Any, values: Any, session: Any) -> None:
        """Replace Keras' callable by one that traces a step only if ``run_options`` are set.

        Keras would build a second callable for untraced steps, and XLA would compile both.
        ``session.run`` would refuse arrays that Keras accepts, e.g. labels with an axis too few.
        """
        function = self.function
        fed = [*feeds, *sorted(function.feed_dict or {})]
        if backend.kind() == "tf2":
            fed = [tensor.ref() for tensor in fed]
        fetches, buffers = function.outputs + function.fetches, _do_run.__globals__["tf_session"]

        def run(*arrays: Any, run_metadata: Any = None) -> Any:
            step = functools.partial(
                _do_run, session, None, [function.updates_op], fetches, dict(zip(fed, arrays))
            )
            if function.run_options is None:
                return step(None, None)
            options = buffers.TF_NewBufferFromString(function.run_options.SerializeToString())
            traces = buffers.TF_NewBuffer()
            try:
                results = step(options, traces)
                if run_metadata is not None:
                    run_metadata.ParseFromString(bytes(buffers.TF_GetBuffer(traces)))
            finally:
                for buffer in (options, traces):
                    buffers.TF_DeleteBuffer(buffer)
            return results

        vars(function).update(
            _callable_fn=run, _feed_arrays=feeds, _feed_symbols=symbols, _symbol_vals=values,
            _fetches=list(function.fetches), _session=session,
        )  # fmt: skip

    def _check_model(self) -> None:
        if self.model.train_function is not self:
            raise AmpXlaError(
                "model.train_function was replaced during fit, e.g. by model.compile in a "
                "callback; call fit again, with another Run, after such a change"
            )

    def result(self, loss: float) -> StepResult:
        """Return the result of the last step, whose loss Keras computed."""
        fetched = self._fetched
        self.scale = float(fetched["loss_scale"])
        flags = tuple(fetched["figures"][1:]) if "figures" in fetched else ()
        return StepResult(
            float(loss), float(fetched["learning_rate"]), self.scale,
            bool(fetched.get("finite", math.isfinite(loss))),
            float(fetched.get("gradient_norm", math.nan)), int(fetched["applied"]), (),
            flags, float(loss),
        )  # fmt: skip

    def arrays(self, feed: Mapping[str, Any], step: int) -> List[Any]:
        """Return the arrays of ``feed`` in the order of the placeholders."""
        return list(feed.values())

    def close(self) -> None:
        """Restore the model's original train function."""
        self.function.inputs, self.function.fetches = self._own
        self.function.run_options, self.function.run_metadata = self._options
        self.function._callable_fn = None
        vars(self.function).pop("_make_callable", None)
        vars(self.model).pop("_make_train_function", None)
        self.model.train_function = self.whole


def _inside(model: Any) -> Optional[Any]:
    """Return Keras' train function, even if a function wraps it; None if it is not found."""
    function = model.train_function
    if hasattr(function, "updates_op"):
        return function
    if not isinstance(function, types.FunctionType):
        return None
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in (*cells, *map(function.__globals__.get, function.__code__.co_names)):
        outputs = getattr(value, "outputs", None)
        if isinstance(outputs, list) and outputs and outputs[0] is model.total_loss:
            return value
    return None


def _rate(optimizer: Any) -> Any:
    """Return the learning rate of the step that has just been applied, a float32 scalar tensor."""
    inner = description.with_inner(optimizer)[-1]
    if "learning_rate" not in getattr(inner, "_hyper", {}):
        return tf.convert_to_tensor(getattr(inner, "learning_rate", math.nan), tf.float32)
    iterations = inner.iterations
    inner._iterations = iterations.read_value() - 1  # schedules of Keras and bert4keras read it
    try:
        return tf.convert_to_tensor(inner._decayed_lr(tf.float32))
    finally:
        inner._iterations = iterations


def metric_variables(model: Any) -> List[Any]:
    """Return the variables of Keras' metrics, which are set to 0 at the start of an epoch."""
    return [variable for metric in model.metrics for variable in metric.weights]


@dataclasses.dataclass(frozen=True)
class FitJob(Job):
    """A job whose step is a ``FitStep``.

    Attributes:
      script: description of data, model, loss and optimizer, compared on resume.
    """

    script: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def training_graph(self) -> training_graph.TrainingGraph:
        return training_graph.from_model(self.model)

    def verify(self, graph: executed.ExecutedGraph) -> None:
        """Compare the executed graph with Keras' mixed policy; if there is none, with the settings.

        Raises:
          NothingConvertedError, UnsupportedError: the executed graph differs from the policy or the
            settings.
        """
        policy = global_policy()
        if policy.compute_dtype not in ("float16", "bfloat16"):
            super().verify(graph)
            return
        executed.verify(
            graph, "amp", policy.compute_dtype, f"by its Keras policy {policy.name}",
            self.resolved.settings.xla,
        )  # fmt: skip


def job(model: Any, step: Any, steps: int, evaluate: Any, script: Dict[str, Any]) -> FitJob:
    """Return the job of a ``fit`` with ``steps`` batches per epoch; Keras itself reads the data."""
    batches: Any = types.SimpleNamespace(
        shapes=(), steps_per_epoch=lambda: steps, epoch=lambda epoch: iter(())
    )
    return FitJob(model, step, batches, evaluate, {}, {}, configuring.current(), script=script)
