"""Two copies of a training graph side by side on CPU: float32 and mixed precision.

Each copy has variables of its own, so each can train. Two more copies share the variables of the
mixed-precision one and only go forward and backward: ``check`` in float32, ``seen`` in mixed
precision with its half tensors watched. Their difference is what the rewrite changed, apart from
what training made of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from amp_xla.backend import tf
from amp_xla.diagnose import emulate, overflow
from amp_xla.diagnose.finding import Finding
from amp_xla.diagnose.recorder import Magnitudes, Recorder, Tensor
from amp_xla.diagnose.stage import Stage
from amp_xla.graph import virtual_gpu
from amp_xla.graph.training_graph import TrainingGraph

SEEN = "seen/"


class Trained(NamedTuple):
    """One training step: its loss, and whether it and all gradients were finite."""

    loss: float
    finite: bool


class Compared(NamedTuple):
    """A gradient in mixed precision beside the float32 one, at the same weights.

    Attributes:
      error: norm of the difference; NaN or infinite where the gradient is.
      norm: of the float32 gradient.
      elements: of the float32 gradient that are not zero.
      lost: of these, those that are zero in mixed precision.
    """

    error: float
    norm: float
    elements: int
    lost: int


class Twins(Stage):
    """The copies ``fp32``, ``amp``, ``check`` and ``seen``.

    Args:
      training: the view of the graph.
      capability, lists: as for ``virtual_gpu.rewrite``.
      exact: train ``amp`` with Eigen's half kernels instead of the tensor-core model; about 100
        times slower.

    Attributes:
      rewritten: what the pass made of the graph.
      half: the GraphDef of the copy ``amp``.
      held: what the watched tensors held in the last ``examine``.
    """

    def __init__(
        self,
        training: TrainingGraph,
        capability: str = "8.0",
        lists: Optional[str] = None,
        exact: bool = False,
    ) -> None:
        ends = [training.loss, *(tensor.split(":")[0] for _, tensor in training.gradients)]
        fetches = [*training.fetches, *ends[1:]]
        for tensor in (training.loss_scale, training.finite):
            if tensor is not None:
                fetches.append(tensor.split(":")[0])
        self.rewritten = virtual_gpu.rewrite(training.export(fetches), fetches, capability, lists)
        float32, half = self.rewritten.before, self.rewritten.graph_def
        emulated = emulate.tensor_cores(half)
        self.half = half if exact else emulated
        super().__init__(training, float32)
        self.add("fp32", float32, "fp32")
        self.add("amp", self.half, "amp")
        self.add("check", tf.graph_util.extract_sub_graph(float32, ends), "amp")
        watched, self._targets = self._watched(tf.graph_util.extract_sub_graph(emulated, ends))
        self.add("seen", watched, "amp")
        with self.graph.as_default():
            self._comparisons = [self._compare(tensor) for _, tensor in training.gradients]
            self._reads = {
                operation.name.partition("/")[2]: tf.raw_ops.ReadVariableOp(
                    resource=operation.outputs[0], dtype=operation.get_attr("dtype")
                )
                for operation in self.graph.get_operations()
                if operation.type == "VarHandleOp" and operation.name.startswith("check/")
            }
        self._callables: Dict[Any, Any] = {}

    def train(self, copy: str, arrays: Sequence[Any], step: int) -> Trained:
        """One training step of ``fp32`` or ``amp``.

        Args:
          copy: which.
          arrays: one per placeholder of the view.
          step: number of the step, for dropout masks.
        """
        training, wanted = self.training, [f"{copy}/{self.training.loss}:0"]
        wanted += [f"{copy}/{training.finite}"] if training.finite else []
        wanted += [f"{copy}/{name}" for name in training.train]
        out = self._run((copy, "train"), wanted, arrays, step, 1.0)
        finite = bool(np.isfinite(out[0])) and (not training.finite or bool(out[1]))
        return Trained(float(out[0]), finite)

    def gradients(self, copy: str, arrays: Sequence[Any], step: int) -> List[Any]:
        """Gradients, unscaled, in the order of the view's; nothing is updated.

        Args:
          copy: ``fp32``, ``amp``, ``check`` or ``seen``.
        """
        wanted = [f"{copy}/{tensor}" for _, tensor in self.training.gradients]
        return self._run((copy, "gradients"), wanted, arrays, step, 1.0)

    def examine(self, arrays: Sequence[Any], step: int, seed: float = 1.0) -> List[Compared]:
        """Gradients of ``seen`` beside those of ``check``, in the order of the view's.

        Args:
          arrays, step: as for ``train``.
          seed: multiplies all gradients of the backward pass, on top of the loss scale.
        """
        for magnitudes in self.held.values():
            magnitudes.clear()
        wanted = [*self._comparisons, *self._targets]
        out = self._run("examine", wanted, arrays, step, seed)[: len(self._comparisons)]
        return [
            Compared(np.sqrt(error) / seed, np.sqrt(norm) / seed, int(elements), int(lost))
            for error, norm, elements, lost in (values.astype(np.float64) for values in out)
        ]

    def loss_scale(self, arrays: Sequence[Any], step: int) -> float:
        """The loss scale that the mixed-precision copy uses now; 1 where there is none."""
        if self.training.loss_scale is None:
            return 1.0
        wanted = [f"amp/{self.training.loss_scale}"]
        return float(self._run("loss scale", wanted, arrays, step, 1.0)[0])

    def find_overflow(
        self, values: Mapping[str, Any], arrays: Sequence[Any], step: int, scale: float
    ) -> Optional[Finding]:
        """The first non-finite node of a batch; see ``overflow.find``.

        Args:
          values: variable op name -> the weights it failed with.
          scale: the loss scale it failed at.
        """
        training, wanted = self.training, overflow.fetches(self.training)
        float32, half = (
            tf.graph_util.extract_sub_graph(graph_def, wanted)
            for graph_def in (self.rewritten.before, self.rewritten.graph_def)
        )
        rewritten = dataclasses.replace(self.rewritten, before=float32, graph_def=half)
        return overflow.replay(training, float32, rewritten, values, arrays, step, scale)

    def weights(self) -> Dict[str, Any]:
        """The variables of ``amp`` that gradients depend on: op name -> value now."""
        return dict(zip(self._reads, self.session.run(list(self._reads.values()))))

    def start(self, values: Mapping[str, Any]) -> None:
        """Puts both copies on the same weights.

        Args:
          values: variable op name -> array.
        """
        self.load("fp32", values)
        self.load("amp", values)

    def _watched(self, graph_def: Any) -> Any:
        self._recorder = Recorder(Magnitudes)
        names = emulate.rounding(graph_def)
        watched, targets, held = self._recorder.watch(graph_def, names)
        self.held: Dict[Tensor, Magnitudes] = held
        return watched, [SEEN + name for name in targets]

    def _compare(self, tensor: str) -> Any:
        mixed = self.graph.get_tensor_by_name(SEEN + tensor)
        plain = self.graph.get_tensor_by_name(f"check/{tensor}")
        there = tf.not_equal(plain, 0.0)
        lost = tf.logical_and(there, tf.equal(mixed, 0.0))
        with tf.name_scope("compare"):
            # In float64: squares of gradients near 1e-30 are still numbers.
            difference = tf.cast(mixed, tf.float64) - tf.cast(plain, tf.float64)
            return tf.stack(
                [
                    tf.reduce_sum(tf.square(difference)),
                    tf.reduce_sum(tf.square(tf.cast(plain, tf.float64))),
                    tf.reduce_sum(tf.cast(there, tf.float64)),
                    tf.reduce_sum(tf.cast(lost, tf.float64)),
                ]
            )

    def _run(self, key: Any, wanted: Sequence[Any], arrays: Any, step: int, seed: float) -> Any:
        feed = self.feed(arrays, step, seed)
        if key not in self._callables:
            self._callables[key] = self.session.make_callable(list(wanted), list(feed))
        return self._callables[key](*feed.values())
