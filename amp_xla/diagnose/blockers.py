"""Explains why a node stayed in float32 by following the pass' rules back to the op that blocks it.

The rules (``auto_mixed_precision.cc``): white ops become half. Black ops do not, nor does a gray
or clear op that a black one reaches through gray and clear ops. Other gray ops become half
between half ops, clear ops next to half ops. Unlisted ops stay and let nothing through.
"""

from __future__ import annotations

import collections
from typing import Any, Iterable, Mapping, NamedTuple, Set

from amp_xla.graph.lists import OpLists
from amp_xla.graph.nodes import FLOAT, has_type, is_half, output_types, parse_input

_SOURCES = frozenset(
    """Assert Assign AssignAddVariableOp AssignSubVariableOp AssignVariableOp Cast Const Placeholder
    PlaceholderWithDefault ReadVariableOp VarHandleOp VarIsInitializedOp Shape ShapeN Size Rank
    NoOp ResourceGather Print""".split()
)


class Blocker(NamedTuple):
    """The op that kept a node in float32.

    Attributes:
      op, node: its type and name; empty if there is none.
      reason: ``black`` (an op on the black list reaches the node), ``unlisted``, ``alone`` (no
        half neighbour) or ``refused`` (listed, but the GPU has no half kernel for it, or the pass
        protects it).
    """

    op: str = ""
    node: str = ""
    reason: str = "alone"


def half_nodes(graph_def: Any) -> Set[str]:
    """Return the names of the half nodes, casts not counted."""
    return {n.name for n in graph_def.node if n.op != "Cast" and is_half(n)}


def computing(nodes: Iterable[Any], half: Set[str]) -> Set[str]:
    """Return the nodes that compute with float32 or half, without parameters, inputs, casts."""
    return {
        n.name
        for n in nodes
        if n.op not in _SOURCES
        and (n.name in half or has_type(n, FLOAT) or FLOAT in output_types(n))
    }


def blocker_of(name: str, nodes: Mapping[str, Any], half: Set[str], lists: OpLists) -> Blocker:
    """Return the blocker of a node that is not half, in the graph before the pass.

    ``half`` are the nodes that became half.
    """
    op = nodes[name].op
    color = lists.of(op)
    if color in ("black", "unlisted"):
        return Blocker(op, name, color)
    if color == "white":
        return Blocker(op, name, "refused")
    # The nearest black op that reaches the node through gray and clear ops.
    seen, queue = {name}, collections.deque([name])
    while queue:
        for source, index in map(parse_input, nodes[queue.popleft()].input):
            if index < 0 or source in seen or source in half or source not in nodes:
                continue
            seen.add(source)
            node = nodes[source]
            color = lists.of(node.op) if FLOAT in output_types(node) else ""
            if color == "black":
                return Blocker(node.op, source, "black")
            if color in ("gray", "clear"):
                queue.append(source)
    return Blocker()
