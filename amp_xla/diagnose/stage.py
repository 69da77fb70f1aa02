"""A separate graph and CPU session that run copies of a training graph."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from amp_xla.backend import tf
from amp_xla.graph.training_graph import DROPOUT_STEP, GRADIENT_SEED, SEED_STEP, TrainingGraph


class Stage:
    """Copies of a training graph under name prefixes; they share the placeholders of ``graph_def``.

    Attributes:
      session: runs ``graph`` as it is, on the CPU.
    """

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

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.session.close()

    def add(self, prefix: str, graph_def: Any, variables: str) -> None:
        """Import a copy under ``prefix`` that shares the variables of the copy ``variables``."""
        part = tf.GraphDef()
        part.CopyFrom(graph_def)
        for node in part.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = f"{variables}/{node.name}".encode()
            if node.op in ("Enter", "RefEnter"):  # two loops must not share a frame
                frame = node.attr["frame_name"].s.decode()
                node.attr["frame_name"].s = f"{prefix}/{frame}".encode()
            # The pass placed nodes on the devices of the virtual machine.
            node.device = ""
            node.attr.pop("_class", None)
        # A copy that does not use a placeholder has no such node.
        present = {node.name for node in part.node}
        shared = {f"{n}:0": t for n, t in self._feeds.items() if n in present}
        with self.graph.as_default():
            tf.import_graph_def(part, name=prefix, input_map=shared)

    def load(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Assign ``values``, op name -> array, to the variables of a copy; call ``add`` before.

        Variables without a value were never initialized, so training does not read them.
        """
        assigns, feed = [], {}
        with self.graph.as_default():
            for operation in self.graph.get_operations():
                copy, _, name = operation.name.partition("/")
                if operation.type == "VarHandleOp" and copy == prefix and name in values:
                    placeholder = tf.placeholder(operation.get_attr("dtype"))
                    assigns.append(
                        tf.raw_ops.AssignVariableOp(
                            resource=operation.outputs[0], value=placeholder
                        )
                    )
                    feed[placeholder] = values[name]
        # In one call, because each call with other fetches prunes this large graph again.
        self.session.run(assigns, feed)

    def loss_scale(self, copy: str, batch: Sequence[Any], step: int) -> float:
        """Return the loss scale of a copy; 1 if it has none."""
        if self.training.loss_scale is None:
            return 1.0
        return float(self.run([f"{copy}/{self.training.loss_scale}"], batch, step)[0])

    def run(
        self, fetches: Sequence[Any], batch: Sequence[Any], step: int, seed: float = 1.0
    ) -> List[Any]:
        """Return the values of ``fetches``.

        Args:
          batch: as for ``TrainingGraph.arrays``.
          step: number of the step, for dropout masks.
          seed: d loss / d loss, which multiplies all gradients.
        """
        values: Dict[str, Any] = dict(zip(self.training.feeds, self.training.arrays(batch)))
        values.update(self.training.constants)
        values.update({SEED_STEP: step, DROPOUT_STEP: step, GRADIENT_SEED: seed})
        feed = {
            t: np.asarray(values[name], t.dtype.as_numpy_dtype) for name, t in self._feeds.items()
        }
        return self.session.run(list(fetches), feed)
