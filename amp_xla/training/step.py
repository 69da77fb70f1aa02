"""Training step, inference, and variables of a TensorFlow v1 graph."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.batches.protocol import SHARE, Batch
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed, optimized
from amp_xla.models import dropout
from amp_xla.precision.tensorflow import dense, distinct_rows
from amp_xla.training import distributed
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.engine import StepResult, fitting, shape_of
from amp_xla.training.optimizers.average import SLOT

FLAG = "flag"  # input, summed over ranks: 1 if this rank has to stop or to save


class TrainStep:
    """Training step: forward, backward, update. The first call counts the executed graph's nodes.

    Args:
      inputs: name -> placeholder; a batch has arrays of these names, and perhaps more.
      loss: float32 scalar tensor, unscaled, regularization included. With several ranks or
        micro-batches, loss and metrics must be means over the batch, weighted by its ``weights``.
      metrics: name -> float32 scalar tensor.
      sharded: those of the ``variables`` that are tables with only some rows on this rank.
      learning_rate: float32 scalar tensor, for the log.

    Raises:
      AmpXlaError: the loss or a metric is no scalar.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        loss: Any,
        optimizer: Any,
        variables: Sequence[Any],
        metrics: Mapping[str, Any],
        sharded: Sequence[Any] = (),
        learning_rate: Any = 0.0,
    ) -> None:
        for name, value in {"the loss": loss, **metrics}.items():
            shape = tf.TensorShape(getattr(value, "shape", ()))
            if shape.ndims:
                raise AmpXlaError(f"{name} of a batch must be one number; found: shape {shape}")
        self.metric_names: List[str] = list(metrics)
        self.loss, self.optimizer, self.variables = loss, optimizer, list(variables)
        rate = tf.convert_to_tensor(learning_rate)
        inputs, share, figures = _sharing(
            inputs, [loss, *metrics.values()], getattr(optimizer, "accumulate", 1)
        )
        # In two calls, so that tools that look at gradients (the rehearsal) find them.
        self.gradients = [
            (_summed(gradient, any(variable is v for v in sharded)), variable)
            for gradient, variable in optimizer.compute_gradients(
                loss if share is None else loss * share, self.variables
            )
        ]
        self.train_op = optimizer.apply_gradients(self.gradients)
        with tf.control_dependencies([self.train_op]):
            applied = optimizer.applied_steps.read_value()
        self.input_names: List[str] = list(inputs)
        self._inputs = [*inputs.values(), dropout.step_input()]
        end = 1 + len(metrics)
        result = StepResult(
            figures[0], rate, optimizer.loss_scale, optimizer.gradients_finite,
            optimizer.gradient_norm, applied, tuple(figures[1:end]), tuple(figures[end:]), loss,
        )  # fmt: skip
        self._fetches = (result, self.train_op)
        self._run: Optional[Any] = None
        self.executed: Optional[executed.ExecutedGraph] = None

    def __call__(self, batch: Batch, step: int) -> StepResult:
        """Run one micro-batch; ``step`` is its number, counted from 0 over the whole run."""
        values = self.arrays(batch, step)
        result, _ = self._first(values) if self._run is None else self._run(*values)
        return result._replace(finite=bool(result.finite), applied=int(result.applied))

    def arrays(self, batch: Batch, step: int) -> List[Any]:
        """Return the arrays of a batch in the order of ``inputs``, then ``step``."""
        return [*(batch[name] for name in self.input_names), step]

    def _first(self, values: List[Any]) -> Any:
        session = backend.session()
        # With the same feeds and fetches both callables share one executor, so the counted graph is
        # the graph that trains.
        traced = session.make_callable(self._fetches, self._inputs, accept_options=True)
        self._run = session.make_callable(self._fetches, self._inputs)
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        out = traced(*values, options=options, run_metadata=metadata)
        self.executed = counted(metadata, session, tf.nest.flatten(self._fetches))
        return out


def counted(metadata: Any, session: Any, fetches: Sequence[Any]) -> executed.ExecutedGraph:
    """Count the nodes that ``session`` executed for ``fetches``; ``metadata``: its RunMetadata."""
    counts = executed.count(metadata.partition_graphs)
    if counts.clusters:
        # XLA has moved the nodes into functions that the executor does not show. So grappler is
        # run once more on the same graph, and its result is counted.
        half = executed.count([_optimized(session, fetches)])
        counts = dataclasses.replace(half, clusters=counts.clusters)
    return counts


def _optimized(session: Any, fetches: Sequence[Any]) -> Any:
    devices: List[Any] = []
    for device in session.list_devices():
        if device.device_type == "CPU":
            devices.insert(0, optimized.named_device(device.name))
        elif device.device_type == "GPU":
            major, minor = backend.compute_capability() or (7, 0)
            environment = {"architecture": f"{major}.{minor}", "cuda": "11000"}
            devices.append(optimized.named_device(device.name, environment))
    names = dict.fromkeys(t.op.name if hasattr(t, "op") else t.name for t in fetches)
    return optimized.optimize(session.graph, session._config, list(names), devices)


def _summed(gradient: Any, sharded: bool) -> Any:
    """Return the gradient of an embedding as a dense tensor, and other gradients unchanged.

    The number of rows in a sparse gradient is a shape that differs between batches, so XLA would
    compile the backward pass for each batch. Adam updates all of its moments in any case, and has a
    fused kernel for dense gradients. A ``sharded`` gradient stays sparse, with each row once.
    """
    if sharded and isinstance(gradient, tf.IndexedSlices):
        return distinct_rows(gradient)
    return dense(gradient)


def _sharing(
    inputs: Mapping[str, Any], means: Sequence[Any], micro_batches: int
) -> Tuple[Dict[str, Any], Optional[Any], Sequence[Any]]:
    """Return the inputs, the loss factor and the results of a step.

    On a whole batch, the factor is None and the results are ``means``. On a part of a batch, each
    mean is multiplied by the part's share. Several ranks return sums over ranks, last of ``FLAG``.
    """
    ranks = distributed.current()
    if not ranks.several and micro_batches == 1:
        return dict(inputs), None, means
    share = tf.placeholder(tf.float32, [], name=SHARE)
    figures = [tf.cast(mean, tf.float32) * share for mean in means]
    inputs = {**inputs, SHARE: share}
    if ranks.several:
        inputs[FLAG] = tf.placeholder(tf.float32, [1], name=FLAG)
        hvd: Any = ranks.hvd
        together = tf.concat([tf.stack(figures), inputs[FLAG]], 0)
        total = hvd.allreduce(together, op=hvd.Sum, name="amp_xla_figures")
        figures = tf.unstack(total, len(means) + 1)
    # The optimizer averages the micro-batches' gradients. This factor turns the mean into the sum.
    return inputs, share * float(micro_batches), figures


class Inference:
    """A forward pass without dropout, from placeholders to tensors, both by name."""

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self._inputs, self._outputs = dict(inputs), dict(outputs)
        self._run: Optional[Any] = None

    def __call__(self, batch: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the outputs for a batch: name -> numpy array."""
        if self._run is None:
            feeds = list(self._inputs.values())
            self._run = backend.session().make_callable(self._outputs, feeds)
        values: Dict[str, Any] = self._run(*[batch[name] for name in self._inputs])
        return values


def initialize_variables() -> None:
    """Initialize the variables that have no value; loaded and trained weights stay."""
    with backend.session().graph.as_default():
        backend.initialize(tf.global_variables())


class Variables:
    """Group of variables of the current graph, read and assigned together."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables: Dict[str, Any] = {v.op.name: v for v in variables}
        self._reads = [v.value() for v in variables]

    def shapes(self) -> Dict[str, str]:
        """Return name -> dtype and shape, such as ``float32[21128,768]``."""
        return {name: shape_of(v) for name, v in self._variables.items()}

    def snapshot(self) -> Dict[str, np.ndarray]:
        """Return the current values in host memory.

        On a CPU the arrays may share memory with resource variables. That is safe: TensorFlow never
        writes into a tensor that is still referenced. Old reference variables are copied.
        """
        values = backend.session().run(self._reads)
        return {
            name: np.array(value) if v.dtype._is_ref_dtype else np.asarray(value)
            for (name, v), value in zip(self._variables.items(), values)
        }

    def assign(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Set all variables; ``tensors`` has an array for each name."""
        session, updates, feed = backend.session(), [], {}
        with session.graph.as_default():
            for name, v in self._variables.items():
                value = tf.placeholder(v.dtype.base_dtype, v.shape)
                updates.append(v.assign(value, read_value=False))
                feed[value] = tensors[name].astype(v.dtype.base_dtype.as_numpy_dtype)
            session.run(tf.group(*updates), feed)


def restore_weights(checkpoint: Checkpoint, weights: Sequence[Any]) -> None:
    """Set ``weights`` from a checkpoint.

    If the run averaged its weights (``--ema``), ``weights`` are set to the averages.

    Raises:
      CheckpointError: a tensor is missing, not finite, or of another dtype or shape.
    """
    variables = Variables(weights)
    slot = SLOT if checkpoint.loop.applied else ""
    variables.assign(fitting(checkpoint, variables.shapes(), exactly=False, slot=slot))
