"""Two copies of a training graph side by side on CPU: float32 and mixed precision.

Each copy has variables of its own, so each can train. A third copy computes float32 gradients at
the mixed-precision copy's weights: what the rewrite changed, apart from what training made of it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from amp_xla.backend import tf
from amp_xla.rewrite import emulate, virtual_gpu
from amp_xla.rewrite.training_graph import (
    GRADIENT_SEED,
    SEED_STEP,
    TrainingGraph,
    assert_exportable,
)


class Gradients(NamedTuple):
    """Loss and gradients of one copy; gradients unscaled, in the order of the view's."""

    loss: float
    arrays: List[Any]


class Twins:
    """The copies, loaded with the weights of ``values``.

    Args:
      training: the view of the graph.
      values: variable op name -> array, for the variables that are to be loaded.
      capability, lists: as for ``virtual_gpu.rewrite``.
      exact: use Eigen's half kernels instead of the tensor-core model; about 100 times slower.
    """

    def __init__(
        self,
        training: TrainingGraph,
        values: Mapping[str, Any],
        capability: str = "8.0",
        lists: Optional[str] = None,
        exact: bool = False,
    ) -> None:
        self.training = training
        gradients = [tensor.split(":")[0] for _, tensor in training.gradients]
        fetches = [*training.fetches, *gradients]
        scale = [] if training.loss_scale is None else [training.loss_scale.split(":")[0]]
        graph_def = training.export([*fetches, *scale])
        assert_exportable(graph_def)
        self.rewritten = virtual_gpu.rewrite(graph_def, [*fetches, *scale], capability, lists)
        self.float32 = self.rewritten.before
        self.half = _plain(self.rewritten.graph_def)
        if not exact:
            self.half = emulate.tensor_cores(self.rewritten.graph_def)
        self.graph = tf.Graph()
        check = tf.graph_util.extract_sub_graph(self.float32, [training.loss, *gradients])
        with self.graph.as_default():
            self._feeds = _placeholders(self.float32)
            self._copy("fp32", self.float32, "fp32")
            self._copy("amp", self.half, "amp")
            self._copy("check", check, "amp")
        self.session = tf.Session(graph=self.graph, config=_config())
        self._load(values)
        self._callables: Dict[Any, Any] = {}

    def close(self) -> None:
        """Gives the memory back."""
        self.session.close()

    def train(self, copy: str, arrays: Sequence[Any], step: int) -> float:
        """One training step of ``fp32`` or ``amp``; returns its loss.

        Args:
          copy: which.
          arrays: one per placeholder of the view.
          step: number of the step, for dropout masks.
        """
        wanted = [f"{copy}/{self.training.loss}:0"]
        wanted += [f"{copy}/{name}" for name in self.training.train]
        return float(self._run((copy, "train"), wanted, arrays, step, 1.0)[0])

    def gradients(
        self, copy: str, arrays: Sequence[Any], step: int, seed: float = 1.0
    ) -> Gradients:
        """Loss and gradients, nothing is updated.

        Args:
          copy: ``fp32``, ``amp``, or ``check`` (float32 at the weights of ``amp``).
          seed: multiplies the gradients within the backward pass and is divided out again.
        """
        wanted = [f"{copy}/{self.training.loss}:0"]
        wanted += [f"{copy}/{tensor}" for _, tensor in self.training.gradients]
        loss, *arrays_out = self._run((copy, "gradients"), wanted, arrays, step, seed)
        return Gradients(float(loss), [np.divide(g, np.float32(seed)) for g in arrays_out])

    def fetch(
        self, tensors: Sequence[Any], arrays: Sequence[Any], step: int, seed: float = 1.0
    ) -> List[Any]:
        """Values of tensors of ``graph`` for one batch."""
        return self.session.run(list(tensors), self._feed(arrays, step, seed))

    def loss_scale(self, arrays: Sequence[Any], step: int) -> float:
        """The loss scale that the mixed-precision copy uses now; 1 where there is none."""
        if self.training.loss_scale is None:
            return 1.0
        return float(self.fetch([f"amp/{self.training.loss_scale}"], arrays, step)[0])

    def _run(self, key: Any, wanted: Sequence[str], arrays: Any, step: int, seed: float) -> Any:
        feed = self._feed(arrays, step, seed)
        if key not in self._callables:
            self._callables[key] = self.session.make_callable(list(wanted), list(feed))
        return self._callables[key](*feed.values())

    def _feed(self, arrays: Sequence[Any], step: int, seed: float) -> Dict[str, Any]:
        values: Dict[str, Any] = dict(zip(self.training.feeds, arrays))
        values.update(self.training.constants)
        values.update({SEED_STEP: step, GRADIENT_SEED: seed})
        return {t: values[name] for name, t in self._feeds.items()}

    def _copy(self, prefix: str, graph_def: Any, variables: str) -> None:
        part = tf.GraphDef()
        part.CopyFrom(graph_def)
        for node in part.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = f"{variables}/{node.name}".encode()
        # Placeholders are shared; a copy that does not use one has no such node.
        present = {node.name for node in part.node}
        shared = {f"{n}:0": t for n, t in self._feeds.items() if n in present}
        tf.import_graph_def(part, name=prefix, input_map=shared)

    def _load(self, values: Mapping[str, Any]) -> None:
        # In one call a copy: each call with other fetches prunes this large graph anew.
        for copy in ("fp32", "amp"):
            assigns, feed = [], {}
            with self.graph.as_default():
                for operation in self.graph.get_operations():
                    prefix, _, name = operation.name.partition("/")
                    # One without a value was never initialised: nothing that trains reads it.
                    if operation.type == "VarHandleOp" and prefix == copy and name in values:
                        placeholder = tf.placeholder(operation.get_attr("dtype"))
                        assigns.append(
                            tf.raw_ops.AssignVariableOp(
                                resource=operation.outputs[0], value=placeholder
                            )
                        )
                        feed[placeholder] = values[name]
            self.session.run(assigns, feed)


def _config() -> Any:
    """No second rewrite, no GPU; the pass' own output is what must run."""
    config = tf.ConfigProto(device_count={"GPU": 0})
    options = config.graph_options.rewrite_options
    options.disable_meta_optimizer = True
    options.auto_mixed_precision = options.OFF
    return config


def _plain(graph_def: Any) -> Any:
    """The rewritten graph as it is, without the placement the pass saw."""
    result = tf.GraphDef()
    result.CopyFrom(graph_def)
    for node in result.node:
        node.attr.pop("_class", None)
    return result


def _placeholders(graph_def: Any) -> Dict[str, Any]:
    """Op name -> a placeholder of its own in the current graph."""
    found = {}
    for node in graph_def.node:
        if node.op in ("Placeholder", "PlaceholderWithDefault"):
            shape = tf.TensorShape(node.attr["shape"].shape)
            dtype = tf.as_dtype(node.attr["dtype"].type)
            found[node.name] = tf.placeholder(dtype, shape)
    return found
