"""Why a node stayed in float32: the rewrite's rules, followed backwards to the op in the way.

The rules (``auto_mixed_precision.cc``): white ops become half; black ops don't, nor does a gray
or clear op that a black one reaches through gray and clear ops; the other gray ops become half
between half ops; clear ops next to half ops follow; unlisted ops stay and let nothing through.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set

from amp_xla.graph.lists import OpLists
from amp_xla.graph.nodes import FLOAT, HALF, output_types, parse_input


class Blocker(NamedTuple):
    """What kept a node in float32.

    Attributes:
      op: the op type in the way; empty where there is none.
      node: its name.
      reason: ``black`` (an op on the black list reaches this node), ``unlisted``,
        ``alone`` (no half node to join) or ``refused`` (listed, and still not converted:
        the GPU has no half kernel for it, or the pass protects it).
    """

    op: str
    node: str
    reason: str


def half_nodes(graph_def: Any) -> Set[str]:
    """Names of the nodes that the rewrite turned into half, casts not counted."""
    return {n.name for n in graph_def.node if n.op != "Cast" and _has_type(n, HALF)}


def computing(nodes: Iterable[Any], half: Set[str]) -> Set[str]:
    """Names of the nodes that compute with real numbers, in float32 or half: parameters, inputs,
    casts and questions about shapes left out."""
    return {
        n.name
        for n in nodes
        if n.op not in _SOURCES
        and (n.name in half or _has_type(n, FLOAT) or FLOAT in output_types(n))
    }


_SOURCES = frozenset(
    """Assert Assign AssignAddVariableOp AssignSubVariableOp AssignVariableOp Cast Const Placeholder
    PlaceholderWithDefault ReadVariableOp VarHandleOp VarIsInitializedOp Shape ShapeN Size Rank
    NoOp ResourceGather Print""".split()
)


def _has_type(node: Any, dtype: int) -> bool:
    return any(a.type == dtype or dtype in a.list.type for a in node.attr.values())


class Blame:
    """Finds the blocker of each node of a graph.

    Args:
      nodes: name -> NodeDef of the graph the pass met.
      half: names of the nodes that became half.
      lists: the lists it used.
    """

    def __init__(self, nodes: Mapping[str, Any], half: Set[str], lists: OpLists) -> None:
        self._nodes, self._half, self._lists = nodes, half, lists
        self._found: Dict[str, Optional[Blocker]] = {}

    def of(self, name: str) -> Blocker:
        """The blocker of a node that is not half."""
        node = self._nodes[name]
        kind = self._lists.of(node.op)
        if kind in ("black", "unlisted"):
            return Blocker(node.op, name, kind)
        if kind == "white":
            return Blocker(node.op, name, "refused")
        above = self._black_above(name)
        return above if above is not None else Blocker("", "", "alone")

    def _black_above(self, name: str) -> Optional[Blocker]:
        """The nearest black op that reaches ``name`` through gray and clear ops."""
        if name in self._found:
            return self._found[name]
        seen, frontier, answer = {name}, [name], None
        while frontier and answer is None:
            reached: List[str] = []
            for current in frontier:
                for text in self._nodes[current].input:
                    source, index = parse_input(text)
                    node = self._nodes.get(source)
                    if index < 0 or node is None or source in seen or source in self._half:
                        continue
                    seen.add(source)
                    if FLOAT not in output_types(node):
                        continue
                    kind = self._lists.of(node.op)
                    if kind == "black":
                        answer = answer or Blocker(node.op, source, "black")
                    elif kind in ("gray", "clear"):
                        reached.append(source)
            frontier = reached
        self._found[name] = answer
        return answer
