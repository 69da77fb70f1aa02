"""Reads GraphDefs (inputs, dtypes, loops) and follows the edges of graphs."""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Set, Tuple

FLOAT, BFLOAT16, HALF = 1, 14, 19  # types.proto: DT_FLOAT, DT_BFLOAT16, DT_HALF
INTEGERS = frozenset((3, 9, 10))  # types.proto: DT_INT32, DT_INT64, DT_BOOL
MATMULS = frozenset(
    ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "XlaEinsum")
)
# Ops that read the shape of their input, not its values.
SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))
# Name endings of the casts that the pass inserts, on 1.15 and on 2.x.
_CAST_SUFFIX = re.compile(r"-\d+-CastToFp(16|32)(-\d+)?-AutoMixedPrecision$")


def parse_input(text: str) -> Tuple[str, int]:
    """Parse ``"a:1"`` -> (a, 1); ``"a"`` -> (a, 0); ``"^a"``, a control input -> (a, -1)."""
    if text.startswith("^"):
        return text[1:], -1
    name, _, index = text.partition(":")
    return name, int(index or 0)


def cast_source(name: str) -> str:
    """Return the name of the node that an inserted cast converts; other names are unchanged."""
    return _CAST_SUFFIX.sub("", name)


def by_name(graph_def: Any) -> Dict[str, Any]:
    """Return node name -> NodeDef."""
    return {node.name: node for node in graph_def.node}


def has_type(node: Any, dtype: int) -> bool:
    """Return whether any type attribute of a NodeDef is ``dtype``."""
    return any(a.type == dtype or dtype in a.list.type for a in node.attr.values())


def half_nodes(graph_def: Any) -> Set[str]:
    """Return the names of all float16 nodes except casts."""
    return {n.name for n in graph_def.node if n.op != "Cast" and has_type(n, HALF)}


@functools.lru_cache(maxsize=None)
def op_def(op: str) -> Any:
    """Return the OpDef of a registered op type, or None for a function's name."""
    from tensorflow.python.framework import op_def_registry

    get = getattr(op_def_registry, "get", None)
    return op_def_registry.get_registered_ops().get(op) if get is None else get(op)


def output_types(node: Any) -> List[int]:
    """Return the DataType of each output of a NodeDef; empty for functions and unknown ops."""
    definition = op_def(node.op)
    types: List[int] = []
    for arg in definition.output_arg if definition is not None else ():
        if arg.type_list_attr:
            types += list(node.attr[arg.type_list_attr].list.type)
            continue
        dtype = node.attr[arg.type_attr].type if arg.type_attr else arg.type
        types += [dtype] * (node.attr[arg.number_attr].i if arg.number_attr else 1)
    return types


def closure(starts: Iterable[Any], neighbours: Callable[[Any], Iterable[Any]]) -> Set[Any]:
    """Return everything reachable from ``starts``, including ``starts``."""
    seen: Set[Any] = set(starts)
    stack = list(seen)
    while stack:
        for name in neighbours(stack.pop()):
            if name not in seen:
                seen.add(name)
                stack.append(name)
    return seen


def upstream(operations: Iterable[Any], within: Optional[Collection[Any]] = None) -> Set[Any]:
    """Return ``operations`` and all operations that they depend on, by data or control.

    ``within``: follow and return only these operations; None = all.
    """

    def before(op: Any) -> List[Any]:
        sources = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        return sources if within is None else [op for op in sources if op in within]

    return closure((op for op in operations if within is None or op in within), before)


def downstream(operations: Iterable[Any], within: Collection[Any]) -> Set[Any]:
    """Return ``operations``, and all in ``within`` that depend on outputs of ``operations``."""

    def readers(op: Any) -> List[Any]:
        return [user for tensor in op.outputs for user in tensor.consumers() if user in within]

    return closure(operations, readers)


def ancestors(nodes: Mapping[str, Any], starts: Iterable[str]) -> Set[str]:
    """Return ``starts`` and the names of all nodes that they depend on by data."""
    return closure(starts, lambda n: [s for s, i in map(parse_input, nodes[n].input) if i >= 0])


def consumers(nodes: Mapping[str, Any]) -> Dict[str, List[str]]:
    """Return producer -> names of the nodes that read its data."""
    readers: Dict[str, List[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for text in node.input:
            source, index = parse_input(text)
            if index >= 0 and source in readers:
                readers[source].append(node.name)
    return readers


def inside_loops(nodes: Mapping[str, Any]) -> Set[str]:
    """Return the names of the nodes inside v1 while loops. A session cannot fetch these nodes."""
    readers = consumers(nodes)
    entries = [name for name, node in nodes.items() if node.op in ("Enter", "LoopCond")]
    reached = closure(entries, lambda name: [] if nodes[name].op == "Exit" else readers[name])
    return {name for name in reached if nodes[name].op != "Exit"}
