"""Updates that read what they have just assigned: they take the value, not the variable.

bert4keras' optimizers assign their moments, and then read them to compute new weights. A cluster of
XLA reads its variables before it assigns any, so that each weight would have clusters of its own:
hundreds for BERT-base. The results are the same up to the rounding of what TensorFlow then shares.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from amp_xla.backend import configuring
from amp_xla.graph.nodes import upstream
from amp_xla.precision.tensorflow import in_v1_graph, tf

READ, ASSIGN = "ReadVariableOp", "AssignVariableOp"
PASS = ("Switch", "Enter", "Identity")  # hand a variable on
UNCHANGED = (READ, "ResourceGather", "VariableShape", "VarIsInitializedOp", *PASS)


def forwarded(build: Callable[[], List[Any]]) -> List[Any]:
    """Call ``build``, which returns operations that update variables; return what to run.

    If XLA compiles the v1 graph that it builds, a read after an assignment becomes the assigned
    value; other reads, and constants, do not wait for assignments. Equal reads become one, which
    joins the updates of all weights. Nothing changes if a variable is assigned more than once, or
    read after its assignment within a nested conditional.
    """
    if not (in_v1_graph() and configuring.compiles()) or tf.distribute.has_strategy():
        return build()
    graph = tf.get_default_graph()
    start = len(graph.get_operations())
    results = build()
    built, branch = graph.get_operations()[start:], graph._get_control_flow_context()
    # Others are there to be run apart, such as initializers.
    needed = [getattr(each, "op", each) for each in results if each is not None]
    inside = upstream(needed, set(built))
    changes: Dict[Any, List[Any]] = {}
    for op in inside:
        for tensor in op.inputs if op.type not in UNCHANGED else ():
            if tensor.dtype == tf.resource:
                changes.setdefault(_variable(tensor), []).append(op)
    readers = [op for op in inside if op.type in (READ, "ResourceGather")]
    after = {
        op for op in readers if upstream([op], inside).intersection(_of(op.inputs[0], changes))
    }
    if any(op.type != READ or op._get_control_flow_context() is not branch for op in after):
        return results
    if any(len(operations) > 1 for operations in changes.values()):
        return results
    begin = []
    if branch is not None:
        begin = [branch.pivot.op]
        # TensorFlow uses a copy of the condition elsewhere; to XLA they are two conditions.
        begin[0].inputs[0].op._update_input(1, branch.pred)
    here = [op for op in built if op in inside and op._get_control_flow_context() is branch]
    changing = {op for operations in changes.values() for op in operations if op in here}
    reads: Dict[Any, Any] = {}
    for op in here:
        change: Any = (*_of(op.inputs[0], changes), None)[0] if op.type == READ else None
        others = [each for each in op.control_inputs if each not in changing]
        if op.type == "Const":
            _wait(op, others + begin)
        elif op.type == READ and op not in after:
            _wait(op, others)
            same = reads.setdefault((op.inputs[0].name, op.outputs[0].dtype), op)
            if same is not op:
                _replace(op.outputs[0], same.outputs[0])
            elif change is not None:
                change._add_control_input(op)
        elif op.type == READ and change.type == ASSIGN and change in changing:
            _replace(op.outputs[0], change.inputs[1])
    # A change for which only constants and reads have waited would not run.
    return [*results, *(op for op in here if op in changing)]


def _of(handle: Any, changes: Dict[Any, List[Any]]) -> List[Any]:
    return changes.get(_variable(handle), [])


def _variable(tensor: Any) -> Any:
    """Return the operation of a variable whose handle may come from outside of a branch."""
    while tensor.op.type in PASS:
        tensor = tensor.op.inputs[0]
    return tensor.op


def _wait(op: Any, others: List[Any]) -> None:
    """Let an operation wait for ``others`` instead of what it waits for."""
    op._remove_all_control_inputs()
    op._add_control_inputs(list(dict.fromkeys(others)))


def _replace(tensor: Any, value: Any) -> None:
    """Let all operations that use ``tensor`` use ``value``."""
    for user in list(tensor.consumers()):
        for i, each in enumerate(user.inputs):
            if each is tensor:
                user._update_input(i, value)
