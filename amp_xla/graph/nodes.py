"""Reading GraphDefs: node inputs, output dtypes, ancestors, loops; walks among operations."""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Set, Tuple

FLOAT, HALF, BFLOAT16 = 1, 19, 14  # types.proto: DT_FLOAT, DT_HALF, DT_BFLOAT16
REAL_TYPES = frozenset((FLOAT, 2, HALF, BFLOAT16))  # 2 = DT_DOUBLE
MATMULS = frozenset(
    ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "XlaEinsum")
)
# They want to know a shape, and run as soon as there is one.
SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))
# What the pass appends to the names of the casts it inserts, on 1.15 and on 2.x.
_CAST_SUFFIX = re.compile(r"-\d+-CastToFp(16|32)(-\d+)?-AutoMixedPrecision$")


def parse_input(text: str) -> Tuple[str, int]:
    """``"a:1"`` -> (a, 1); ``"a"`` -> (a, 0); ``"^a"``, a control input -> (a, -1)."""
    if text.startswith("^"):
        return text[1:], -1
    name, _, index = text.partition(":")
    return name, int(index or 0)


def inserted_cast(name: str) -> bool:
    """True for a Cast node that the rewrite added."""
    return _CAST_SUFFIX.search(name) is not None


def cast_source(name: str) -> str:
    """The node whose output an inserted cast converts; other names are returned as they are."""
    return _CAST_SUFFIX.sub("", name)


def by_name(graph_def: Any) -> Dict[str, Any]:
    """Node name -> NodeDef."""
    return {node.name: node for node in graph_def.node}


@functools.lru_cache(maxsize=None)
def op_def(op: str) -> Any:
    """The OpDef of a registered op type, or None (a function's name)."""
    from tensorflow.python.framework import op_def_registry

    get = getattr(op_def_registry, "get", None)
    return op_def_registry.get_registered_ops().get(op) if get is None else get(op)


def output_types(node: Any) -> List[int]:
    """DataType of each output of a NodeDef; empty for functions and unknown ops."""
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
    """Everything reachable from ``starts``, themselves included."""
    seen: Set[Any] = set(starts)
    stack = list(seen)
    while stack:
        for name in neighbours(stack.pop()):
            if name not in seen:
                seen.add(name)
                stack.append(name)
    return seen


def upstream(operations: Iterable[Any], within: Optional[Collection[Any]] = None) -> Set[Any]:
    """tf.Operations and all that runs before them by data or control, as far as ``within``."""

    def before(op: Any) -> List[Any]:
        found = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        return found if within is None else [op for op in found if op in within]

    return closure((op for op in operations if within is None or op in within), before)


def downstream(operations: Iterable[Any], within: Collection[Any]) -> Set[Any]:
    """tf.Operations and all ``within`` that read what follows from them."""

    def after(op: Any) -> List[Any]:
        return [u for tensor in op.outputs for u in tensor.consumers() if u in within]

    return closure(operations, after)


def ancestors(nodes: Mapping[str, Any], starts: Iterable[str], control: bool = False) -> Set[str]:
    """Names of all nodes whose output reaches ``starts``; over control edges too if asked."""

    def inputs(name: str) -> List[str]:
        if name not in nodes:
            return []
        parsed = [parse_input(text) for text in nodes[name].input]
        return [source for source, index in parsed if control or index >= 0]

    return closure((name for name in starts if name in nodes), inputs)


def consumers(nodes: Mapping[str, Any]) -> Dict[str, List[Tuple[str, int]]]:
    """Producer -> (consumer, which output of the producer it reads), data edges only."""
    found: Dict[str, List[Tuple[str, int]]] = {name: [] for name in nodes}
    for node in nodes.values():
        for text in node.input:
            source, index = parse_input(text)
            if index >= 0 and source in found:
                found[source].append((node.name, index))
    return found


def inside_loops(nodes: Mapping[str, Any]) -> Set[str]:
    """Nodes between Enter and Exit of a v1 while loop: their values can't be fetched."""
    outgoing = consumers(nodes)

    def after(name: str) -> List[str]:
        return [] if nodes[name].op == "Exit" else [target for target, _ in outgoing[name]]

    entries = [name for name, node in nodes.items() if node.op in ("Enter", "LoopCond")]
    return {n for n in closure(entries, after) if nodes[n].op != "Exit"}
