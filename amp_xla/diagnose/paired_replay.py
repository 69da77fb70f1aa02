"""Trains two copies of a training graph on a CPU: float32 and mixed precision.

Each copy has its own variables. A third copy, ``check``, runs forward and backward in float32 with
the variables of the mixed-precision copy. These two have the same weights, so the difference
between their gradients is the effect of rounding alone.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.diagnose import emulate
from amp_xla.diagnose.recorder import watch
from amp_xla.diagnose.stage import Stage
from amp_xla.graph import nodes, virtual_gpu
from amp_xla.graph.training_graph import TrainingGraph, op_of


class PairedReplay(Stage):
    """Three copies of a training graph: ``fp32``, ``amp`` (half tensors recorded) and ``check``.

    Attributes:
      rewritten: result of the mixed-precision pass.
      records: ranges of the half tensors over all calls of ``examine``.
    """

    def __init__(self, training: TrainingGraph) -> None:
        tensors = [t for t in (training.loss_scale, training.finite) if t is not None]
        fetches = [*training.train, *training.ends, *map(op_of, tensors)]
        self.rewritten = virtual_gpu.rewrite(training.export(fetches), fetches)
        float32, emulated = self.rewritten.before, emulate.tensor_cores(self.rewritten.graph_def)
        examined = nodes.ancestors(nodes.by_name(emulated), training.ends)
        watched, targets, self.records = watch(emulated, emulate.rounding(emulated) & examined)
        super().__init__(training, float32)
        self.add("fp32", float32, "fp32")
        self.add("amp", watched, "amp")
        self.add("check", tf.graph_util.extract_sub_graph(float32, training.ends), "amp")
        self._targets = [f"amp/{name}" for name in targets]
        with self.graph.as_default():
            self._comparisons = [self._compare(tensor) for _, tensor in training.gradients]
            self._reads = {name: self._read(f"amp/{name}") for name, _ in training.gradients}

    def _read(self, variable: str) -> Any:
        handle = self.graph.get_operation_by_name(variable)
        dtype = handle.get_attr("dtype")
        return tf.raw_ops.ReadVariableOp(resource=handle.outputs[0], dtype=dtype)

    def train(self, copy: str, batch: Sequence[Any], step: int) -> Tuple[float, bool]:
        """Run one training step; return the loss, and whether loss and gradients are finite."""
        training, names = self.training, [f"{copy}/{self.training.loss}:0"]
        names += [f"{copy}/{training.finite}"] if training.finite else []
        names += [f"{copy}/{name}" for name in training.train]
        out = self.run(names, batch, step)
        finite = bool(np.isfinite(out[0])) and (not training.finite or bool(out[1]))
        return float(out[0]), finite

    def examine(self, batch: Sequence[Any], step: int, seed: float = 1.0) -> Any:
        """Compare the gradients of ``amp`` and ``check``.

        ``seed`` multiplies all gradients of the backward pass, on top of the loss scale.

        Returns:
          float64 [gradients, 4]. The columns are the squared norm of the difference (NaN or
          infinite if the gradient is), the squared norm of the float32 gradient, the number of its
          elements that are not zero, and how many of these are zero in mixed precision.
        """
        count = len(self._comparisons)
        out = self.run([*self._comparisons, *self._targets], batch, step, seed)[:count]
        return np.array(out).reshape(count, 4) / [seed**2, seed**2, 1.0, 1.0]

    def weights(self) -> Dict[str, Any]:
        """Return the values of ``amp``'s trained variables, by op name."""
        return dict(zip(self._reads, self.session.run(list(self._reads.values()))))

    def _compare(self, tensor: str) -> Any:
        mixed = self.graph.get_tensor_by_name(f"amp/{tensor}")
        plain = self.graph.get_tensor_by_name(f"check/{tensor}")
        nonzero = tf.not_equal(plain, 0.0)
        lost = tf.logical_and(nonzero, tf.equal(mixed, 0.0))
        with tf.name_scope("compare"):
            # In float64, because squares of gradients near 1e-30 are zero in float32.
            wide, *counts = (tf.cast(x, tf.float64) for x in (plain, nonzero, lost))
            difference = tf.cast(mixed, tf.float64) - wide
            values = [tf.square(difference), tf.square(wide), *counts]
            return tf.stack([tf.reduce_sum(value) for value in values])
