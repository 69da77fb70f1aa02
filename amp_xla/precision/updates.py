"""Updates of layers, such as BatchNormalization's moving averages, that a skipped step leaves out.

In a v1 graph these operations exist before the optimizer's, and sessions may have run them. So they
stay as they are, and the step runs copies of them, in a branch that depends on its decision.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Sequence, Set

from amp_xla.graph.nodes import upstream
from amp_xla.precision.tensorflow import tf

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


def if_applied(updates: Sequence[Any], finite: Any, loss: Any) -> List[Any]:
    """Return update operations that run only if the step is applied, in a v1 graph.

    Within a window of ``accumulate``, they run if the loss of their micro-batch is finite.

    Args:
      updates: operations, tensors or pairs (variable, value) of Keras.
      finite: the step's decision, a boolean scalar.
      loss: the step's loss. What it depends on runs before the decision, and is unchanged.
    """
    every, forward = tf.get_default_graph().get_operations(), upstream([loss.op])
    branches = {op for op in every if _in_branch(op)}
    gated, roots, rest = set(), [], []
    for update in updates:
        op = getattr(update, "op", update)
        found = upstream([op], branches | {op}) if isinstance(op, tf.Operation) else set()
        assigns = [each for each in found if each.type.startswith(ASSIGNS)]
        if assigns and forward.isdisjoint(assigns):
            gated |= found
            roots.append(op)
        else:
            rest.append(update)

    if not gated:
        return rest

    def run() -> Any:
        copies = _copies(sorted(gated, key=lambda op: op._id))
        with tf.control_dependencies([copies[op] for op in roots]):
            return tf.constant(True)

    applied = tf.logical_and(finite, tf.reduce_all(tf.is_finite(loss)))
    return [*rest, tf.cond(applied, run, lambda: tf.constant(False)).op]


def awaited() -> List[Any]:
    """Return the operations that new ones wait for, if updates of layers are among them."""
    graph = tf.get_default_graph()
    waits = list(graph._current_control_dependencies())
    steps = {v.op for v in tf.get_collection(tf.GraphKeys.GLOBAL_STEP)}
    found = upstream(waits, {op for op in graph.get_operations() if _in_branch(op)})
    return waits if _assigned(found) - steps and graph._get_control_flow_context() is None else []


def _assigned(operations: Iterable[Any]) -> Set[Any]:
    """Return the operations of the variables that are assigned, also in a branch."""
    found = set()
    for op in operations:
        if op.type.startswith(ASSIGNS):
            source = op.inputs[0].op
            while source.type == "Switch":
                source = source.inputs[0].op
            found.add(source)
    return found


def _in_branch(op: Any) -> bool:
    """Return whether an operation assigns, is in a branch, or passes on a result of either."""
    if op.type.startswith(ASSIGNS) or op.type == "Switch":
        return True
    if op._get_control_flow_context() is not None:
        return True
    if op.type not in ("Identity", "ReadVariableOp", "NoOp"):
        return False
    return bool(op.control_inputs) or any(t.op.type == "Switch" for t in op.inputs)


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
