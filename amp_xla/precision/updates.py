"""Leaves out updates of layers, such as BatchNormalization's moving averages, in skipped steps.

In a v1 graph, layers create these updates before the optimizer creates its operations, and sessions
may have run them. So the updates stay unchanged, and the step runs copies of them, in a branch
for applied steps only.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set

from amp_xla.graph.nodes import closure, upstream
from amp_xla.precision.loss_scale import LossScaleWarning
from amp_xla.precision.tensorflow import (
    Pairs,
    Window,
    all_finite,
    in_v1_graph,
    tf,
    variable_of,
)

ASSIGNS = ("Assign", "ResourceScatter", "Scatter", "StatefulPartitionedCall")


class Updates(list):
    """List of a step's operations; Keras' train function appends the updates of layers to it.

    Args:
      operations: operations of the optimizer.
      gate: function from the updates of layers to operations that replace them. Only applied steps
        run the replacements, except updates on which gradients depend.
    """

    def __init__(self, operations: Iterable[Any], gate: Callable[[Sequence[Any]], List[Any]]):
        super().__init__(operations)
        self._optimizers, self._gate = list(operations), gate
        self._others: List[Any] = []

    def __iadd__(self, others: Any) -> Any:
        self._others += others
        # In one call for all updates, so that an operation that several depend on is copied once.
        self[:] = [*self._optimizers, *self._gate(self._others)]
        return self

    def __add__(self, others: Any) -> Any:
        both = Updates(self._optimizers, self._gate)
        both += [*self._others, *others]
        return both


def if_applied(
    updates: Sequence[Any], finite: Any, pairs: Pairs, window: Optional[Window]
) -> List[Any]:
    """Return update operations that run only if the step is applied, in a v1 graph.

    Within a window, the updates run if the gradients of their micro-batch are finite. If the window
    is skipped, it restores their variables.

    Args:
      updates: operations or tensors. Keras' pairs (variable, value) are returned unchanged.
      finite: the step's decision, a boolean scalar.
      pairs: gradients and variables. If the gradients need the result of an update, it also runs
        in skipped steps; a warning names its variables.
      window: of ``accumulate``, or None.
    """
    if not updates:
        return []
    gradients = [g for g, _ in pairs if g is not None]
    forward = upstream([gradient.op for gradient in gradients])
    changing, gated, roots, rest = _changing(forward), set(), [], []
    for update in updates:
        op = getattr(update, "op", update)
        sources = upstream([op], changing | {op}) if isinstance(op, tf.Operation) else set()
        before = ", ".join(sorted(each.name for each in _assigned(sources & forward)))
        if before:
            message = (
                f"a skipped step updates {before}, too, because the loss depends on the update"
            )
            warnings.warn(message, LossScaleWarning, stacklevel=2)
        if _assigned(sources) and not before:
            gated |= sources
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
    """Take the updates of layers out of the control dependencies in scope, and yield them.

    Operations of the block do not wait for these updates, e.g. BatchNormalization's averages.
    """
    graph, updates = tf.get_default_graph(), []
    waits = list(graph._current_control_dependencies()) if in_v1_graph() else []
    if waits and graph._get_control_flow_context() is None:
        changing = _changing(set())
        steps = {v.op for v in tf.get_collection(tf.GraphKeys.GLOBAL_STEP)}
        assign = [op for op in waits if _assigned(upstream([op], changing)) - steps]
        # Not those of optimizers.
        updates = [op for op in assign if not any("Apply" in each.type for each in upstream([op]))]
    if not updates:
        yield []
        return
    others = [op for op in waits if op not in updates]
    with tf.control_dependencies(None), tf.control_dependencies(others):
        yield updates


def _assigned(operations: Iterable[Any]) -> Set[Any]:
    """Return the handles of all variables that ``operations`` assign, also inside branches."""
    variables: Set[Any] = set()
    for op in operations:
        if op.type.startswith(ASSIGNS):
            # A tf.function may assign all variables that it uses.
            variables.update(map(variable_of, op.inputs[: None if op.type.endswith("Call") else 1]))
    return variables


def _changing(forward: Set[Any]) -> Set[Any]:
    """Return the graph's operations that are in a branch, that assign or that follow an assignment.

    Leave out operations of ``forward`` (gradients need them) that only follow an assignment.
    """
    from tensorflow.python.ops import control_flow_util

    def follows(op: Any) -> List[Any]:
        readers = [user for tensor in op.outputs for user in tensor.consumers()]
        return [user for user in [*readers, *op._control_outputs] if user not in forward]

    branches: Set[Any] = set()
    assigning: Set[Any] = set()
    for op in tf.get_default_graph().get_operations():
        switch = op.inputs[0].op if op.type == "Identity" else op
        # The results of a branch or a loop are outside of it.
        inside = control_flow_util.GetOutputContext(op) is not None
        if inside or switch.type.endswith("Switch"):
            branches.add(op)
        if op.type.startswith(ASSIGNS) and not (op.type.endswith("Call") and op in forward):
            assigning.add(op)
    return branches | closure(assigning, follows)


def _copies(operations: Set[Any]) -> Dict[Any, Any]:
    """Copy operations, so that copies read from copies; return operation -> copy."""
    scope = tf.get_default_graph().unique_name("if_applied")
    graph_def, outside = tf.GraphDef(), {}
    originals = sorted(operations, key=lambda op: op._id)
    for op in originals:
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        others = {f"^{each.name}" for each in op.control_inputs if each not in operations}
        node.input[:] = [name for name in node.input if name not in others]
        node.attr.pop("_class", None)
        if "frame_name" in node.attr:  # of a loop
            node.attr["frame_name"].s += scope.encode()
        outside.update({t.name: t for t in op.inputs if t.op not in operations})
    names = [op.name for op in originals]
    copies = dict(zip(originals, tf.import_graph_def(graph_def, outside, names, name=scope)))
    for op, copy in copies.items():
        copy._add_control_inputs([each for each in op.control_inputs if each not in operations])
    return copies
