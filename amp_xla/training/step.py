"""One training step and one inference pass as callables over a TensorFlow v1 graph."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.data.batches.pieces import NUMBER, WEIGHTS
from amp_xla.data.batches.protocol import Batch, sample_count
from amp_xla.errors import AmpXlaError
from amp_xla.graph import executed, optimized
from amp_xla.graph.nodes import upstream
from amp_xla.models import dropout
from amp_xla.training import distributed

Feed = Mapping[str, Any]
ASKED, SAMPLES = "asked", "piece_samples"  # what ranks tell each other in a step


class StepResult(NamedTuple):
    """What one training step returned; all floats are of the step, not averages.

    ``loss`` is unscaled; ``loss_scale`` is the one in force during the step; ``finite`` is False
    where the update was skipped; ``applied`` counts updates so far, this step's included;
    ``metrics`` in the order of ``TrainStep.metric_names``. Where ranks share a batch: of all ranks
    together; ``samples`` they saw, what any of them ``asked`` for, this rank's ``own`` loss.
    """

    loss: float
    learning_rate: float
    loss_scale: float
    finite: bool
    gradient_norm: float
    applied: int
    metrics: Tuple[float, ...]
    samples: int = 0
    asked: Tuple[float, ...] = ()
    own: float = 0.0

    def then(self, later: StepResult) -> StepResult:
        """This of one piece of a batch, and ``later`` of the next, as one."""
        return later._replace(
            loss=self.loss + later.loss,
            finite=self.finite and later.finite,
            metrics=tuple(a + b for a, b in zip(self.metrics, later.metrics)),
            samples=self.samples + later.samples,
            asked=tuple(a + b for a, b in zip(self.asked, later.asked)),
            own=self.own + later.own,
        )


class TrainStep:
    """Forward, backward and update; the first call counts what the executed graph holds.

    Args:
      inputs: name -> placeholder; each call must feed arrays under exactly these names.
      step_input: placeholder of the step number (``dropout.install``), or None.
      loss: float32 scalar tensor, unscaled, with every added loss in it. Where ranks share a batch:
        a mean over the batch by its ``weights``, as each metric is.
      optimizer: ``LossScaleOptimizer``.
      variables: what to train.
      learning_rate: float32 scalar tensor, for the log.
      metrics: name -> float32 scalar tensor.
      sharded: those of ``variables`` of which this rank has some rows only.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        step_input: Optional[Any],
        loss: Any,
        optimizer: Any,
        variables: Sequence[Any],
        learning_rate: Any,
        metrics: Optional[Mapping[str, Any]] = None,
        sharded: Sequence[Any] = (),
    ) -> None:
        metrics = dict(metrics or {})
        self.metric_names: List[str] = list(metrics)
        self.loss, self.optimizer, self.variables = loss, optimizer, list(variables)
        self.learning_rate = tf.convert_to_tensor(learning_rate)
        inputs, share, told = _sharing(inputs, step_input, [loss, *metrics.values()])
        # In two calls, so that tools that look at gradients (the rehearsal) find them.
        self.gradients = [
            (_rows(gradient) if _among(variable, sharded) else _dense(gradient), variable)
            for gradient, variable in optimizer.compute_gradients(
                _poisoned(loss) if share is None else _poisoned(loss) * share, self.variables
            )
        ]
        self.train_op = optimizer.apply_gradients(self.gradients)
        with tf.control_dependencies([self.train_op]):
            applied = optimizer.applied_steps.read_value()
        self.input_names: List[str] = list(inputs)
        self.placeholders: List[Any] = list(inputs.values())
        self._inputs = list(inputs.values())
        self._has_step = step_input is not None
        if step_input is not None:
            self._inputs.append(step_input)
        self._fetches = [
            loss,
            self.learning_rate,
            optimizer.loss_scale,
            optimizer.gradients_finite,
            optimizer.gradient_norm,
            applied,
            *metrics.values(),
            self.train_op,
        ]
        self._told = told is not None
        if told is not None:
            self._fetches.insert(-1, told)
        self._run: Optional[Any] = None
        self.executed: Optional[executed.ExecutedGraph] = None
        self.dirty: Optional[int] = None  # the last step that may have changed variables

    def __call__(self, feed: Feed, step: int) -> StepResult:
        """Runs one step.

        Args:
          feed: name -> array for every name of ``inputs``.
          step: number of this step, counted from 0 over the whole run.
        """
        values = self.arrays(feed, step)
        run, before = self._run, self.dirty
        self.dirty = step
        try:
            out = run(*values) if run is not None else self._first(values)
        except tf.errors.OpError as error:
            if self._before_updates(error):
                self.dirty = before
            raise
        judged = (out[1], out[2], bool(out[3]), out[4], int(out[5]))
        if not self._told:
            return StepResult(out[0], *judged, tuple(out[6:-1]))
        together, last = out[-2], 1 + len(self.metric_names)
        return StepResult(
            together[0], *judged, tuple(together[1:last]), round(float(together[last])),
            tuple(together[last + 1 :]), float(out[0]),
        )  # fmt: skip

    def feed(self, batch: Batch) -> Dict[str, Any]:
        """The arrays of a batch that this step has placeholders for, in their order."""
        arrays: Dict[str, Any] = dict(batch)
        if self._told:
            arrays[ASKED] = np.zeros(2, np.float32)
            arrays[SAMPLES] = np.array(sample_count(batch), np.float32)
        return {name: arrays[name] for name in self.input_names}

    def _before_updates(self, error: Any) -> bool:
        """True where ``error`` is of an operation that every update waits for, so none was made.

        Updates stand in a branch that is entered when all gradients were found to be finite; with
        accumulation, sums change before that.
        """
        if self.optimizer.window is not None:
            return False
        names = re.findall(r"node ([\w./\-]+)", error.message)
        graph = backend.session().graph
        waited = upstream([self.optimizer.gradients_finite.op])
        try:
            return bool(names) and all(graph.get_operation_by_name(n) in waited for n in names)
        except KeyError:  # a node that a graph pass has made
            return False

    def arrays(self, feed: Feed, step: int) -> List[Any]:
        """What the graph is fed: arrays in the order of ``inputs``, then ``step`` if it has one."""
        values = [feed[name] for name in self.input_names]
        if self._has_step:
            values.append(step)
        return values

    def session_call(self, values: Sequence[Any], step: int) -> List[Any]:
        """The bare call: arrays in the order of ``input_names`` in, fetched values out.

        For benchmarks; only after the first step.
        """
        assert self._run is not None
        return self._run(*values, step) if self._has_step else self._run(*values)

    def _first(self, values: List[Any]) -> List[Any]:
        session = backend.session()
        # Same feeds and fetches, so both callables share one executor: the graph that is counted
        # is the graph that trains.
        traced = session.make_callable(self._fetches, self._inputs, accept_options=True)
        self._run = session.make_callable(self._fetches, self._inputs)
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        out = traced(*values, options=options, run_metadata=metadata)
        found = executed.count(metadata.partition_graphs)
        if found.clusters:
            # XLA has moved the nodes into functions the executor does not show, so the same
            # passes are run once more on the same graph, and their result is counted.
            half = executed.count([self._optimized(session)])
            found = dataclasses.replace(half, clusters=found.clusters)
        self.executed = found
        return out

    def _optimized(self, session: Any) -> Any:
        devices: List[Any] = []
        for device in session.list_devices():
            if device.device_type == "CPU":
                devices.insert(0, optimized.named_device(device.name, "CPU", frequency=2000))
            elif device.device_type == "GPU":
                major, minor = backend.compute_capability() or (7, 0)
                environment = {"architecture": f"{major}.{minor}", "cuda": "11000"}
                devices.append(
                    optimized.named_device(
                        device.name, "GPU", frequency=1400, environment=environment
                    )
                )
        names = [t.op.name if hasattr(t, "op") else t.name for t in self._fetches]
        return optimized.optimize(session.graph, session._config, names, devices)


def _dense(gradient: Any) -> Any:
    """A gradient of an embedding as a dense tensor; others as they are.

    Sparse ones are made unique before they are summed, and XLA would compile the backward pass
    anew for every batch, whose number of different tokens is a shape to it. Adam reads and writes
    its whole moments either way, and has one fused kernel for dense gradients.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])


def _among(variable: Any, variables: Sequence[Any]) -> bool:
    return any(variable is other for other in variables)


def _rows(gradient: Any) -> Any:
    """A gradient of a table too large to be dense, each row of it once: ranks may ask for one."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ids, positions = tf.unique(gradient.indices)
    rows = tf.unsorted_segment_sum(gradient.values, positions, tf.size(ids))
    return tf.IndexedSlices(rows, ids, gradient.dense_shape)


def _sharing(
    inputs: Mapping[str, Any], step_input: Optional[Any], means: List[Any]
) -> Tuple[Dict[str, Any], Optional[Any], Optional[Any]]:
    """What a step has more of where it is one of several that make a batch.

    Returns:
      Its inputs; the share of the batch that this piece is, by weight, which its loss counts for;
      a vector for all ranks: loss, metrics, samples, what was asked for. Both None where a batch
      comes in one piece.
    """
    ranks = distributed.current()
    if ranks.alone:
        return dict(inputs), None, None
    follows, piece = dropout.shares()
    if step_input is not None and not follows:
        raise AmpXlaError(
            "ranks share a batch, and dropout does not know how: give dropout.install(seed, "
            "batches) the batches that distributed.current().share(...) returned"
        )
    hvd: Any = ranks.hvd
    # The weight of this piece, and of all pieces of this rank.
    weights = tf.placeholder(tf.float32, [2], name=WEIGHTS)
    asked = tf.placeholder(tf.float32, [2], name=ASKED)
    samples = tf.placeholder(tf.float32, [], name=SAMPLES)
    more = {WEIGHTS: weights, ASKED: asked, SAMPLES: samples}
    if piece is not None:
        more[NUMBER] = piece
    whole = weights[1]
    if ranks.several:
        whole = hvd.allreduce(whole, op=hvd.Sum, name="amp_xla_weight")
    share = weights[0] / tf.maximum(whole, 1e-6)
    figures = tf.stack([tf.cast(mean, tf.float32) * share for mean in means] + [samples])
    told = tf.concat([figures, asked], 0)
    if ranks.several:
        told = hvd.allreduce(told, op=hvd.Sum, name="amp_xla_figures")
    return {**inputs, **more}, share, told


def _poisoned(loss: Any) -> Any:
    """The loss, whose gradient is NaN where the loss itself is not finite.

    A sum may overflow above gradients that are all finite; such a step is to be skipped too, by
    the same judgement, on every rank. A finite loss is multiplied by 1.
    """
    one = tf.ones_like(loss)
    return loss * tf.stop_gradient(tf.where(tf.is_finite(loss), one, one * float("nan")))


class Inference:
    """A pass without dropout: feeds arrays, fetches named tensors.

    Args:
      inputs: name -> placeholder; names that ``__call__`` is not given are an error.
      outputs: name -> tensor.
    """

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self._names, self._inputs = list(inputs), list(inputs.values())
        self._keys, self._outputs = list(outputs), list(outputs.values())
        self._run: Optional[Any] = None

    def __call__(self, feed: Feed) -> Dict[str, Any]:
        """Returns name -> numpy array."""
        if self._run is None:
            self._run = backend.session().make_callable(self._outputs, self._inputs)
        return dict(zip(self._keys, self._run(*[feed[name] for name in self._names])))


def initialize_variables() -> None:
    """Initialises what is not initialised yet; loaded weights stay."""
    session = backend.session()
    with session.graph.as_default():
        variables = tf.global_variables()
        flags = session.run([tf.is_variable_initialized(v) for v in variables])
        session.run(tf.variables_initializer([v for v, done in zip(variables, flags) if not done]))
