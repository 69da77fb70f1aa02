"""Updates of layers, such as BatchNormalization's moving averages, that a skipped step leaves out.

In a v1 graph these operations exist before the optimizer's, and sessions may have run them. So they
stay as they are, and the step runs copies of them, in a branch that depends on its decision.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set

from amp_xla.graph.nodes import upstream
from amp_xla.precision.tensorflow import Pairs, Window, all_finite, in_v1_graph, tf

ASSIGNS = ("Assign", "ResourceScatter", "Scatter")


class Updates(list):
    """Operations of a step; Keras' train function adds those of the layers to them.

    Args:
      operations: operations of the optimizer.
      gate: function that replaces operations of layers.
    """

    def __init__(self, operations: Iterable[Any], gate: Callable[[Sequence[Any]], List[Any]]):
        super().__init__(operations)
        self._gate = gate

    def __iadd__(self, others: Any) -> Any:
        self.extend(self._gate(list(others)))
        return self

    def __add__(self, others: Any) -> Any:
        both = Updates(self, self._gate)
        both += others
        return both


def if_applied(
    updates: Sequence[Any], finite: Any, pairs: Pairs, window: Optional[Window]
) -> List[Any]:
    """Return update operations that run only if the step is applied, in a v1 graph.

    Within a window, they run if the gradients of their micro-batch are finite; a window that is
    skipped undoes them.

    Args:
      updates: operations, tensors or pairs (variable, value) of Keras.
      finite: the step's decision, a boolean scalar.
      pairs: gradients and variables. What gradients depend on runs before the decision, unchanged.
      window: of ``accumulate``, or None.
    """
    if not updates:
        return []
    gradients = [g for g, _ in pairs if g is not None]
    forward = upstream([gradient.op for gradient in gradients])
    changing, gated, roots, rest = _changing(forward), set(), [], []
    for update in updates:
        op = getattr(update, "op", update)
        found = upstream([op], changing | {op}) if isinstance(op, tf.Operation) else set()
        if _assigned(found) and not _assigned(found & forward):
            gated |= found
            roots.append(op)
        else:
            rest.append(update)

    if not gated:
        return rest
    if window is not None:
        finite, changed = tf.logical_and(finite, all_finite(gradients)), _assigned(gated)
        window.keep([v for v in tf.global_variables() + tf.local_variables() if v.op in changed])

    def run() -> Any:
        copies = _copies(sorted(gated, key=lambda op: op._id))
        with tf.control_dependencies([copies[op] for op in roots]):
            return tf.constant(True)

    return [*rest, tf.cond(finite, run, lambda: tf.constant(False)).op]


@contextlib.contextmanager
def apart() -> Iterator[List[Any]]:
    """Build operations without control dependencies on updates of layers; yield these updates."""
    waits = tf.get_default_graph()._current_control_dependencies() if in_v1_graph() else []
    updates = _of_layers(list(waits))
    if not updates:
        yield []
        return
    others = [op for op in waits if op not in updates]
    with tf.control_dependencies(None), tf.control_dependencies(others):
        yield updates


def _of_layers(operations: List[Any]) -> List[Any]:
    """Return the layers' updates: not of an optimizer, and not of the global step only."""
    graph = tf.get_default_graph()
    if not operations or graph._get_control_flow_context() is not None:
        return []
    changing = _changing(set())
    steps = {v.op for v in tf.get_collection(tf.GraphKeys.GLOBAL_STEP)}
    assign = [op for op in operations if _assigned(upstream([op], changing)) - steps]
    return [op for op in assign if not any("Apply" in each.type for each in upstream([op]))]


def _assigned(operations: Iterable[Any]) -> Set[Any]:
    """Return the operations of the variables that are assigned, also in a branch."""
    found = set()
    for op in operations:
        if op.type.startswith(ASSIGNS):
            source = op.inputs[0].op
            while source.type.endswith("Switch"):  # RefSwitch, too
                source = source.inputs[0].op
            found.add(source)
    return found


def _changing(forward: Set[Any]) -> Set[Any]:
    """Return the operations that are in a branch, assign, or depend on one that assigns.

    Those in ``forward`` are left out if they only depend on one that assigns.
    """
    branches: Set[Any] = set()
    changed: Set[Any] = set()
    for op in tf.get_default_graph().get_operations():  # each after those that it depends on
        sources = [t.op for t in op.inputs]
        switched = op.type == "Identity" and sources[0].type.endswith("Switch")
        if switched or op.type.endswith("Switch") or op._get_control_flow_context() is not None:
            branches.add(op)
        follows = op not in forward and not changed.isdisjoint([*sources, *op.control_inputs])
        if follows or op.type.startswith(ASSIGNS):
            changed.add(op)
    return branches | changed


def _copies(operations: Sequence[Any]) -> Dict[Any, Any]:
    """Return operation -> copy; each operation is listed after those that it depends on."""
    copies: Dict[Any, Any] = {}
    graph = tf.get_default_graph()
    for op in operations:
        inputs = [copies[t.op].outputs[t.value_index] if t.op in copies else t for t in op.inputs]
        attributes = {k: v for k, v in op.node_def.attr.items() if k != "_class"}
        with tf.control_dependencies([copies.get(each, each) for each in op.control_inputs]):
            copies[op] = graph.create_op(
                op.type, inputs, [t.dtype for t in op.outputs], attrs=attributes
            )
    return copies
