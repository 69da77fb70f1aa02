"""Replaces reads of a variable after its assignment by the assigned value, for XLA.

bert4keras' optimizers assign their moments, and then read them to compute new weights. A cluster of
XLA reads all its variables before it assigns any. So each read after an assignment would need
another cluster: hundreds for BERT-base. After the replacement, TensorFlow may merge equal terms, so
results may differ by rounding.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from amp_xla.backend import configuring
from amp_xla.graph.nodes import upstream
from amp_xla.precision.tensorflow import in_v1_graph, tf, variable_of

READ, ASSIGN = "ReadVariableOp", "AssignVariableOp"
# Operations with a variable as input that do not change it.
HARMLESS = (
    READ, "ResourceGather", "VariableShape", "VarIsInitializedOp", "Switch", "Enter", "Identity",
)  # fmt: skip


def forwarded(build: Callable[[], List[Any]]) -> List[Any]:
    """Call ``build``; return the operations to run, changed so that they can form one cluster.

    Change them only if XLA compiles a v1 graph and no ``tf.distribute`` strategy is in scope. A
    read after an assignment is replaced by the assigned value. Several reads of one variable
    become one. The results of ``build`` may no longer depend on the assignments, so the assignments
    are returned, too. Change nothing if a variable is assigned more than once, or if a read after
    an assignment reads single rows or is in a nested conditional.
    """
    if not (in_v1_graph() and configuring.compiles()) or tf.distribute.has_strategy():
        return build()
    graph = tf.get_default_graph()
    start = len(graph.get_operations())
    results = build()
    built, branch = graph.get_operations()[start:], graph._get_control_flow_context()
    # The operations that no result needs, such as initializers, are run on their own.
    needed = [getattr(each, "op", each) for each in results if each is not None]
    inside = upstream(needed, set(built))
    changes: Dict[Any, List[Any]] = {}
    for op in inside:
        for tensor in op.inputs if op.type not in HARMLESS else ():
            if tensor.dtype == tf.resource:
                changes.setdefault(variable_of(tensor), []).append(op)
    readers = [op for op in inside if op.type in (READ, "ResourceGather")]
    following = {
        op
        for op in readers
        if upstream([op], inside).intersection(changes.get(variable_of(op.inputs[0]), []))
    }
    if any(op.type != READ or op._get_control_flow_context() is not branch for op in following):
        return results
    if any(len(operations) > 1 for operations in changes.values()):
        return results
    change_of = {variable: operations[0] for variable, operations in changes.items()}
    begin = []
    if branch is not None:
        begin = [branch.pivot.op]
        # The other Switches test a copy of the condition, which XLA takes for another condition.
        begin[0].inputs[0].op._update_input(1, branch.pred)
    here = [op for op in built if op in inside and op._get_control_flow_context() is branch]
    changing = set(change_of.values()).intersection(here)
    reads: Dict[Any, Any] = {}
    for op in here:
        if op.type not in ("Const", READ):
            continue
        waits = [each for each in op.control_inputs if each not in changing]
        if op.type == "Const":
            _wait(op, waits + begin)
            continue
        change: Any = change_of.get(variable_of(op.inputs[0]))
        if op not in following:
            _wait(op, waits)
            same = reads.setdefault((op.inputs[0].name, op.outputs[0].dtype), op)
            if same is not op:
                _replace(op.outputs[0], same.outputs[0])
            elif change is not None:
                change._add_control_input(op)
        elif change.type == ASSIGN and change in changing:
            _replace(op.outputs[0], change.inputs[1])
    # Constants and reads no longer wait for a change, so it must be among the results to run.
    return [*results, *(op for op in here if op in changing)]


def _wait(op: Any, operations: List[Any]) -> None:
    """Let ``op`` wait for ``operations`` instead of its previous control inputs."""
    op._remove_all_control_inputs()
    op._add_control_inputs(list(dict.fromkeys(operations)))


def _replace(tensor: Any, value: Any) -> None:
    """Let all operations that read ``tensor`` read ``value`` instead."""
    for user in list(tensor.consumers()):
        for i, each in enumerate(user.inputs):
            if each is tensor:
                user._update_input(i, value)
