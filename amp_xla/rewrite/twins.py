"""Two copies of a training graph side by side on CPU: float32 and mixed precision.

Each copy has variables of its own, so each can train. A third copy computes float32 gradients at
the mixed-precision copy's weights: what the rewrite changed, apart from what training made of it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from amp_xla.backend import tf
from amp_xla.rewrite import emulate, virtual_gpu
from amp_xla.rewrite.stage import Stage
from amp_xla.rewrite.training_graph import TrainingGraph


class Gradients(NamedTuple):
    """Loss and gradients of one copy; gradients unscaled, in the order of the view's."""

    loss: float
    arrays: List[Any]


class Trained(NamedTuple):
    """One training step: its loss, whether all gradients were finite, and, if asked for, them."""

    loss: float
    finite: bool
    gradients: Optional[List[Any]]


class Twins(Stage):
    """The copies ``fp32``, ``amp`` and ``check``.

    Args:
      training: the view of the graph.
      capability, lists: as for ``virtual_gpu.rewrite``.
      exact: use Eigen's half kernels instead of the tensor-core model; about 100 times slower.

    Attributes:
      rewritten: what the pass made of the graph.
      half: the GraphDef of the copy ``amp``.
    """

    def __init__(
        self,
        training: TrainingGraph,
        capability: str = "8.0",
        lists: Optional[str] = None,
        exact: bool = False,
    ) -> None:
        gradients = [tensor.split(":")[0] for _, tensor in training.gradients]
        fetches = [*training.fetches, *gradients]
        for tensor in (training.loss_scale, training.finite):
            if tensor is not None:
                fetches.append(tensor.split(":")[0])
        self.rewritten = virtual_gpu.rewrite(training.export(fetches), fetches, capability, lists)
        float32, half = self.rewritten.before, self.rewritten.graph_def
        self.half = half if exact else emulate.tensor_cores(half)
        super().__init__(training, float32)
        self.add("fp32", float32, "fp32")
        self.add("amp", self.half, "amp")
        check = tf.graph_util.extract_sub_graph(float32, [training.loss, *gradients])
        self.add("check", check, "amp")
        self._reads: Dict[str, Any] = {}
        with self.graph.as_default():
            for operation in self.graph.get_operations():
                copy, _, name = operation.name.partition("/")
                if copy == "check" and operation.type == "VarHandleOp":
                    dtype = operation.get_attr("dtype")
                    self._reads[name] = tf.raw_ops.ReadVariableOp(
                        resource=operation.outputs[0], dtype=dtype
                    )
        self._callables: Dict[Any, Any] = {}

    def train(
        self, copy: str, arrays: Sequence[Any], step: int, gradients: bool = False
    ) -> Trained:
        """One training step of ``fp32`` or ``amp``.

        Args:
          copy: which.
          arrays: one per placeholder of the view.
          step: number of the step, for dropout masks.
          gradients: return the gradients too.
        """
        training, wanted = self.training, [f"{copy}/{self.training.loss}:0"]
        wanted += [f"{copy}/{training.finite}"] if training.finite else []
        wanted += self._gradient_names(copy) if gradients else []
        count = len(wanted)
        wanted += [f"{copy}/{name}" for name in training.train]
        key = (copy, "train", gradients)
        loss, *rest = self._run(key, wanted, arrays, step, 1.0)[:count]
        finite = bool(np.isfinite(loss)) and (not training.finite or bool(rest.pop(0)))
        return Trained(float(loss), finite, rest if gradients else None)

    def gradients(
        self, copy: str, arrays: Sequence[Any], step: int, seed: float = 1.0
    ) -> Gradients:
        """Loss and gradients, nothing is updated.

        Args:
          copy: ``fp32``, ``amp``, or ``check`` (float32 at the weights of ``amp``).
          seed: multiplies the gradients within the backward pass and is divided out again.
        """
        wanted = [f"{copy}/{self.training.loss}:0", *self._gradient_names(copy)]
        loss, *found = self._run((copy, "gradients"), wanted, arrays, step, seed)
        if seed != 1.0:
            found = [g / np.float32(seed) for g in found]
        return Gradients(float(loss), found)

    def loss_scale(self, arrays: Sequence[Any], step: int) -> float:
        """The loss scale that the mixed-precision copy uses now; 1 where there is none."""
        if self.training.loss_scale is None:
            return 1.0
        return float(self.run([f"amp/{self.training.loss_scale}"], arrays, step, 1.0)[0])

    def weights(self) -> Dict[str, Any]:
        """The variables of ``amp`` that gradients depend on: op name -> value now."""
        return dict(zip(self._reads, self.session.run(list(self._reads.values()))))

    def _gradient_names(self, copy: str) -> List[str]:
        return [f"{copy}/{tensor}" for _, tensor in self.training.gradients]

    def _run(self, key: Any, wanted: Sequence[str], arrays: Any, step: int, seed: float) -> Any:
        feed = self.feed(arrays, step, seed)
        if key not in self._callables:
            self._callables[key] = self.session.make_callable(list(wanted), list(feed))
        return self._callables[key](*feed.values())


def load(twins: Twins, values: Mapping[str, Any]) -> None:
    """Starts both copies from the same weights.

    Args:
      twins: with its graph complete: nothing may be added to it afterwards without cost.
      values: variable op name -> array.
    """
    twins.load("fp32", values)
    twins.load("amp", values)
