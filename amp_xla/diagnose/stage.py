"""A graph and a CPU session of their own, in which copies of a training graph are run."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from amp_xla.backend import tf
from amp_xla.errors import UnsupportedError
from amp_xla.graph.training_graph import GRADIENT_SEED, SEED_STEP, TrainingGraph


class Stage:
    """Copies under prefixes, fed from shared placeholders.

    Args:
      training: the view of the graph that the copies are of.
      graph_def: any copy, for its placeholders.
    """

    def __init__(self, training: TrainingGraph, graph_def: Any) -> None:
        self.training = training
        self.graph = tf.Graph()
        self._feeds: Dict[str, Any] = {}
        with self.graph.as_default():
            for node in graph_def.node:
                if node.op in ("Placeholder", "PlaceholderWithDefault"):
                    shape = tf.TensorShape(node.attr["shape"].shape)
                    dtype = tf.as_dtype(node.attr["dtype"].type)
                    self._feeds[node.name] = tf.placeholder(dtype, shape)
        self._session: Any = None

    @property
    def session(self) -> Any:
        """Made when the graph is complete: the first use."""
        if self._session is None:
            self._session = tf.Session(graph=self.graph, config=_config())
        return self._session

    def close(self) -> None:
        """Gives the memory back."""
        if self._session is not None:
            self._session.close()

    def add(self, prefix: str, graph_def: Any, variables: str) -> None:
        """Imports a copy under ``prefix``, with the variables of the copy ``variables``.

        Raises:
          UnsupportedError: a variable has no handle (a v1 reference variable); named.
        """
        part = tf.GraphDef()
        part.CopyFrom(graph_def)
        for node in part.node:
            if node.op in ("VariableV2", "Variable"):
                raise UnsupportedError(
                    f"variable {node.name} is a reference variable; call "
                    f"tf.compat.v1.enable_resource_variables() before building the model "
                    f"(import amp_xla.setup does)"
                )
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = f"{variables}/{node.name}".encode()
            if node.op in ("Enter", "RefEnter"):  # two loops must not share a frame
                frame = node.attr["frame_name"].s.decode()
                node.attr["frame_name"].s = f"{prefix}/{frame}".encode()
            # The placement that the pass saw is not that of this machine.
            node.device = ""
            node.attr.pop("_class", None)
        # A copy that does not use a placeholder has no such node.
        present = {node.name for node in part.node}
        shared = {f"{n}:0": t for n, t in self._feeds.items() if n in present}
        with self.graph.as_default():
            tf.import_graph_def(part, name=prefix, input_map=shared)

    def load(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Gives the variables of a copy their values; the graph must be complete.

        Args:
          prefix: the copy.
          values: variable op name -> array. One that is missing was never initialised, so
            nothing that trains reads it.
        """
        assigns, feed = [], {}
        with self.graph.as_default():
            for operation in self.graph.get_operations():
                before, _, name = operation.name.partition("/")
                if operation.type == "VarHandleOp" and before == prefix and name in values:
                    placeholder = tf.placeholder(operation.get_attr("dtype"))
                    assigns.append(
                        tf.raw_ops.AssignVariableOp(
                            resource=operation.outputs[0], value=placeholder
                        )
                    )
                    feed[placeholder] = values[name]
        # In one call: each call with other fetches prunes this large graph anew.
        self.session.run(assigns, feed)

    def feed(self, arrays: Sequence[Any], step: int, seed: float = 1.0) -> Dict[Any, Any]:
        """What ``session.run`` is to be fed.

        Args:
          arrays: one per placeholder of the view.
          step: number of the step, for dropout masks.
          seed: d loss / d loss, which multiplies all gradients.

        Raises:
          UnsupportedError: not one array per placeholder.
        """
        names = self.training.feeds
        if len(arrays) != len(names):
            raise UnsupportedError(
                f"{len(arrays)} arrays for {len(names)} placeholders; wanted, in this order: "
                f"{', '.join(names)}"
            )
        values: Dict[str, Any] = dict(zip(self.training.feeds, arrays))
        values.update(self.training.constants)
        values.update({SEED_STEP: step, GRADIENT_SEED: seed})
        return {
            t: np.asarray(values[name], t.dtype.as_numpy_dtype) for name, t in self._feeds.items()
        }

    def run(self, fetches: Sequence[Any], arrays: Sequence[Any], step: int, seed: float) -> List:
        """Values of ``fetches``, once; for repeated runs make a callable."""
        return self.session.run(list(fetches), self.feed(arrays, step, seed))


def _config() -> Any:
    """No second rewrite, no GPU; the pass' own output is what must run."""
    config = tf.ConfigProto(device_count={"GPU": 0})
    options = config.graph_options.rewrite_options
    options.disable_meta_optimizer = True
    options.auto_mixed_precision = options.OFF
    return config
