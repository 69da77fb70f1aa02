"""Updates of layers, such as BatchNormalization's moving averages, that a skipped step leaves out.

In a v1 graph these operations exist before the optimizer's, and sessions may have run them. So they
stay as they are, and the step runs copies of them, in a branch that depends on its decision.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set

from amp_xla.graph.nodes import closure, upstream
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
        self._own, self._gate, self._others = list(operations), gate, []

    def __iadd__(self, others: Any) -> Any:
        self._others += others
        # Replace all of them: what several depend on runs once.
        self[:] = [*self._own, *self._gate(self._others)]
        return self


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
        copies = _copies(gated)
        with tf.control_dependencies([copies[op] for op in roots]):
            return tf.constant(True)

    return [*rest, tf.cond(finite, run, lambda: tf.constant(False)).op]


@contextlib.contextmanager
def apart() -> Iterator[List[Any]]:
    """Build operations that do not wait for updates of layers; yield those that they would."""
    waits = tf.get_default_graph()._current_control_dependencies() if in_v1_graph() else []
    updates = _of_layers(list(waits))
    if not updates:
        yield []
        return
    others = [op for op in waits if op not in updates]
    with tf.control_dependencies(None), tf.control_dependencies(others):
        yield updates


def _of_layers(operations: List[Any]) -> List[Any]:
    """Return those that assign variables, but no optimizer's step, and not the global step only."""
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
            while source.type.endswith(("Switch", "Enter")):  # RefSwitch, too
                source = source.inputs[0].op
            found.add(source)
    return found


def _changing(forward: Set[Any]) -> Set[Any]:
    """Return the operations that are in a branch, assign, or depend on one that does.

    Of the forward pass, return those in a branch and those that assign.
    """
    from tensorflow.python.ops import control_flow_util

    def follows(op: Any) -> List[Any]:
        readers = [user for tensor in op.outputs for user in tensor.consumers()]
        return [user for user in [*readers, *op._control_outputs] if user not in forward]

    branches: Set[Any] = set()
    assigning: Set[Any] = set()
    for op in tf.get_default_graph().get_operations():
        switched = op.type == "Identity" and op.inputs[0].op.type.endswith("Switch")
        inside = control_flow_util.GetOutputContext(op) is not None  # not the results of a loop
        if switched or inside or op.type.endswith("Switch"):
            branches.add(op)
        if op.type.startswith(ASSIGNS):
            assigning.add(op)
    return branches | closure(assigning, follows)


def _copies(operations: Iterable[Any]) -> Dict[Any, Any]:
    """Return operation -> copy; each is copied after those that it depends on."""
    graph = tf.get_default_graph()
    copies: Dict[Any, Any] = {}
    frames = graph.unique_name("frame").encode()
    pending = sorted(operations, key=lambda op: op._id)
    while pending:
        left = set(pending)
        for op in pending:
            # The end of a loop's body is an input of its beginning; it is copied later.
            ends = [t.op.type.endswith("NextIteration") for t in op.inputs]
            sources = [op.inputs[0] if end else t for t, end in zip(op.inputs, ends)]
            if not left.isdisjoint([*(t.op for t in sources), *op.control_inputs]):
                continue
            inputs = [copies[t.op].outputs[t.value_index] if t.op in copies else t for t in sources]
            attributes = {k: v for k, v in op.node_def.attr.items() if k != "_class"}
            if "frame_name" in attributes:
                attributes["frame_name"].s += frames
            with tf.control_dependencies([copies.get(each, each) for each in op.control_inputs]):
                copies[op] = graph.create_op(
                    op.type, inputs, [t.dtype for t in op.outputs], attrs=attributes
                )
            left.remove(op)
        pending = [op for op in pending if op in left]
    for op, copy in copies.items():
        for number, source in enumerate(op.inputs):
            if source.op.type.endswith("NextIteration"):
                copy._update_input(number, copies[source.op].outputs[0])
    return copies
