"""A separate graph and CPU session that run copies of a training graph and record their tensors.

``GraphCopies`` runs any copies, ``PairedReplay`` those of a rehearsal.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.diagnose import emulate
from amp_xla.graph import nodes, virtual_gpu
from amp_xla.graph.training_graph import DROPOUT_STEP, GRADIENT_SEED, TrainingGraph

LARGEST = 65504.0  # largest float16
OVERFLOW = 65520.0  # float16 rounds this and larger numbers to infinity
ROUNDS_TO_ZERO = 2.0**-25  # half of the smallest float16

Tensor = Tuple[str, int]  # node name, output


@dataclasses.dataclass
class ValueRange:
    """The range of a tensor's values, over all times that it was computed.

    ``low`` and ``high`` are the smallest and largest finite element, 0 if there are none. The other
    fields count elements; ``vanishing`` counts non-zero elements that float16 rounds to zero.
    """

    low: float = 0.0
    high: float = 0.0
    nan: int = 0
    infinite: int = 0
    nonzero: int = 0
    vanishing: int = 0
    size: int = 0

    @property
    def finite(self) -> bool:
        """True if there is no NaN and no infinity."""
        return not (self.nan or self.infinite)

    @property
    def largest(self) -> float:
        """The largest magnitude among the finite elements."""
        return max(abs(self.low), abs(self.high))

    def add(self, values: Any) -> Tuple[()]:
        """Add the elements of an array; return (), because ``tf.numpy_function`` calls this."""
        values = np.asarray(values)
        finite = values[np.isfinite(values)]
        nan = np.count_nonzero(np.isnan(values))
        nonzero = np.count_nonzero(values)
        known = [] if self.size == self.nan + self.infinite else [self.low, self.high]
        self.nan += nan
        self.infinite += values.size - finite.size - nan
        self.nonzero += nonzero
        small = np.count_nonzero(np.abs(finite) <= ROUNDS_TO_ZERO)
        self.vanishing += small - (values.size - nonzero)
        self.size += values.size
        if finite.size:
            known += [float(finite.min()), float(finite.max())]
            self.low, self.high = min(known), max(known)
        return ()

    def __str__(self) -> str:
        text = f"{self.low:.4g} .. {self.high:.4g}"
        counts = [(self.nan, "NaN"), (self.infinite, "infinite")]
        bad = " and ".join(f"{count} {word}" for count, word in counts if count)
        return text + (f", {bad} of {self.size} elements" if bad else "")


class GraphCopies(contextlib.AbstractContextManager):
    """Copies of a training graph on the CPU, which share one set of placeholders."""

    def __init__(self, training: TrainingGraph, graph_def: Any) -> None:
        self.training = training
        self.graph = tf.Graph()
        self._feeds: Dict[str, Any] = {}
        with self.graph.as_default():
            for node in graph_def.node:
                if node.op in ("Placeholder", "PlaceholderWithDefault"):
                    # Without a static shape, because Keras' fit feeds arrays of other ranks, too.
                    self._feeds[node.name] = tf.placeholder(tf.as_dtype(node.attr["dtype"].type))
        config = tf.ConfigProto(device_count={"GPU": 0})
        options = config.graph_options.rewrite_options
        options.disable_meta_optimizer = True
        options.auto_mixed_precision = options.OFF
        self.session = tf.Session(graph=self.graph, config=config)

    def __exit__(self, *_: Any) -> None:
        self.session.close()

    def add(self, prefix: str, graph_def: Any, variables: str) -> None:
        """Import a copy named ``prefix``, with the variables of the copy named ``variables``."""
        part = tf.GraphDef()
        part.CopyFrom(graph_def)
        for node in part.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = f"{variables}/{node.name}".encode()
            if node.op in ("Enter", "RefEnter"):  # two loops must not share a frame
                frame = node.attr["frame_name"].s.decode()
                node.attr["frame_name"].s = f"{prefix}/{frame}".encode()
            node.device = ""  # the training graph may place nodes on a GPU
            node.attr.pop("_class", None)  # an inlined function's node, by one that is left out
        # A copy that does not use a placeholder has no such node.
        present = {node.name for node in part.node}
        shared = {f"{n}:0": t for n, t in self._feeds.items() if n in present}
        with self.graph.as_default():
            tf.import_graph_def(part, name=prefix, input_map=shared)

    def record(
        self, copy: str, graph_def: Any, names: Collection[str]
    ) -> Tuple[List[Any], Dict[Tensor, ValueRange]]:
        """Add operations that record the float32 outputs of the nodes that ``names`` lists.

        Return these operations, which record each time they are run, and the records. Nodes in v1
        while loops have no record; nodes in a branch that is never taken have an empty one.
        """
        operations, records = [], {}
        with self.graph.as_default():
            for name in sorted(set(names) - nodes.inside_loops(nodes.by_name(graph_def))):
                outputs = self.graph.get_operation_by_name(f"{copy}/{name}").outputs
                if name in self._feeds:
                    outputs = [self._feeds[name]]
                for index, tensor in enumerate(outputs):
                    if tensor.dtype == tf.float32:
                        # A Python function, because fetched tensors would stay in memory, and those
                        # of a branch that is not taken cannot be fetched.
                        records[name, index] = record = ValueRange()
                        operations.append(tf.numpy_function(record.add, [tensor], []))
        return operations, records

    def load(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Assign ``values`` (op name -> array) to the variables of a copy that ``add`` imported.

        Variables that ``values`` lacks were never initialized, so training does not read them.
        """
        assigns, feed = [], {}
        with self.graph.as_default():
            for operation in self.graph.get_operations():
                copy, _, name = operation.name.partition("/")
                if operation.type == "VarHandleOp" and copy == prefix and name in values:
                    fed, handle = tf.placeholder(operation.get_attr("dtype")), operation.outputs[0]
                    assigns.append(tf.raw_ops.AssignVariableOp(resource=handle, value=fed))
                    feed[fed] = values[name]
        # In one call, because each call with other fetches prunes this large graph again.
        self.session.run(assigns, feed)

    def loss_scale(self, copy: str, batch: Sequence[Any], step: int) -> float:
        """Return the loss scale of a copy."""
        return float(self.run([f"{copy}/{self.training.loss_scale}:0"], batch, step)[0])

    def run(
        self, fetches: Sequence[Any], batch: Sequence[Any], step: int, seed: float = 1.0
    ) -> List[Any]:
        """Return the values of ``fetches``.

        ``step`` decides the dropout masks. All gradients are multiplied by ``seed``.
        """
        values: Dict[str, Any] = dict(zip(self.training.feeds, batch))
        values.update(self.training.constants)
        values.update({DROPOUT_STEP: step, GRADIENT_SEED: seed})
        feed = {
            t: np.asarray(values[name], t.dtype.as_numpy_dtype) for name, t in self._feeds.items()
        }
        return self.session.run(list(fetches), feed)


class PairedReplay(GraphCopies):
    """Three copies of a training graph. ``fp32`` and ``amp`` train, with separate variables.

    The copy ``check`` computes gradients in float32 with the variables of ``amp``. These two copies
    have the same weights, so their gradients differ by rounding alone. ``records`` are the ranges
    of tensors that ``amp`` rounds to half, before rounding, over all calls of ``examine``.
    """

    def __init__(self, training: TrainingGraph) -> None:
        fetches = [*training.train, *training.ends, training.loss_scale]
        fetches += [training.finite] if training.finite else []
        self.rewritten = virtual_gpu.rewrite(training, fetches)
        emulated = emulate.tensor_cores(self.rewritten.graph_def)
        float32 = emulate.tensor_cores(self.rewritten.graph_def, rounds=False)
        examined = nodes.ancestors(nodes.by_name(emulated), training.ends)
        super().__init__(training, float32)
        self.add("fp32", float32, "fp32")
        self.add("amp", emulated, "amp")
        self.add("check", tf.graph_util.extract_sub_graph(float32, training.ends), "amp")
        self._recordings, self.records = self.record(
            "amp", emulated, emulate.cast_to_half(emulated) & examined
        )
        with self.graph.as_default():
            self._comparisons = [self._compare(gradient) for _, gradient in training.gradients]
            self._reads = {}
            for name, _ in training.gradients:
                handle = self.graph.get_operation_by_name(f"amp/{name}")
                self._reads[name] = tf.raw_ops.ReadVariableOp(
                    resource=handle.outputs[0], dtype=handle.get_attr("dtype")
                )

    def train(self, copy: str, batch: Sequence[Any], step: int) -> Tuple[float, bool]:
        """Run a step; return the loss, and whether loss and gradients (if tested) are finite."""
        training, names = self.training, [f"{copy}/{self.training.loss}:0"]
        names += [f"{copy}/{training.finite}:0"] if training.finite else []
        names += [f"{copy}/{name}" for name in training.train]
        out = self.run(names, batch, step)
        finite = bool(np.isfinite(out[0])) and (not training.finite or bool(out[1]))
        return float(out[0]), finite

    def examine(self, batch: Sequence[Any], step: int, seed: float = 1.0) -> Any:
        """Compare the gradients of ``amp`` and ``check``.

        The backward pass multiplies all gradients by ``seed``; the norms are divided by it again.

        Returns:
          float64 [gradients, 4]. The columns are the squared norm of the difference (NaN or
          infinite if the gradient is), the squared norm of the float32 gradient, the number of the
          float32 gradient's non-zero elements, and how many of these are zero in mixed precision.
        """
        count = len(self._comparisons)
        out = self.run([*self._comparisons, *self._recordings], batch, step, seed)[:count]
        return np.array(out).reshape(count, 4) / [seed**2, seed**2, 1.0, 1.0]

    def weights(self) -> Dict[str, Any]:
        """Return the values of the trained variables of the copy ``amp``, by op name."""
        return dict(zip(self._reads, self.session.run(list(self._reads.values()))))

    def _compare(self, gradient: str) -> Any:
        mixed = self.graph.get_tensor_by_name(f"amp/{gradient}:0")
        plain = self.graph.get_tensor_by_name(f"check/{gradient}:0")
        nonzero = tf.not_equal(plain, 0.0)
        lost = tf.logical_and(nonzero, tf.equal(mixed, 0.0))
        with tf.name_scope("compare"):
            # In float64, because squares of gradients near 1e-30 are zero in float32.
            wide, *counts = (tf.cast(x, tf.float64) for x in (plain, nonzero, lost))
            difference = tf.cast(mixed, tf.float64) - wide
            values = [tf.square(difference), tf.square(wide), *counts]
            return tf.stack([tf.reduce_sum(value) for value in values])
