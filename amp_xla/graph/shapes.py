"""Infers shapes and matrix-product FLOPs of a training graph for one batch shape.

bert4keras computes shapes at run time, so shape inference alone finds almost none. If placeholders
have fixed shapes, constant folding evaluates those computations.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import opt_einsum  # TensorFlow depends on it

from amp_xla.backend import tf
from amp_xla.graph import optimized
from amp_xla.graph.nodes import MATMULS, parse_input

Shape = Optional[Tuple[int, ...]]  # None if a dimension is unknown
_MAX_ROUNDS = 8  # each round resolves one more level of shape arithmetic; 3 usually suffice


def static_shapes(
    graph_def: Any, fetches: Sequence[str], placeholders: Mapping[str, Sequence[int]]
) -> Dict[str, List[Shape]]:
    """Return node name -> shapes of its outputs, for nodes whose shapes are all known.

    ``placeholders`` maps op names to shapes; other placeholders keep their shape in the graph.
    """
    from tensorflow.python.grappler import item as grappler_item

    current = _with_known_inputs(graph_def, placeholders)
    known: Dict[str, List[Shape]] = {}
    for _ in range(_MAX_ROUNDS):
        properties = grappler_item.Item(optimized.item(current, fetches)).GetOpProperties()
        count = len(known)
        for name, outputs in properties.items():
            shapes = [_shape(p.shape) for p in outputs]
            if name not in known and None not in shapes:
                known[name] = shapes
        if len(known) == count:
            break
        current = optimized.passed(current, ["constfold"], fetches)
    return known


def _shape(proto: Any) -> Shape:
    dims = tuple(d.size for d in proto.dim)
    return None if proto.unknown_rank or any(d < 0 for d in dims) else dims


def _with_known_inputs(graph_def: Any, placeholders: Mapping[str, Sequence[int]]) -> Any:
    """Return a copy of the graph in which each placeholder of known shape has a default value.

    Shape inference ignores the shape of a placeholder without a default value. A constant in place
    of the placeholder would not do: all nodes that depend on it would be folded.
    """
    result = tf.GraphDef()
    result.CopyFrom(graph_def)
    for node in list(result.node):
        if node.op != "Placeholder":
            continue
        shape = placeholders.get(node.name, _shape(node.attr["shape"].shape))
        if shape is not None:
            default = result.node.add(name=f"{node.name}/default", op="Const")
            default.attr["dtype"].type = dtype = node.attr["dtype"].type
            default.attr["value"].tensor.dtype = dtype
            proto = tf.TensorShape(shape).as_proto()
            default.attr["value"].tensor.tensor_shape.CopyFrom(proto)  # without values: zeros
            node.op, node.input[:] = "PlaceholderWithDefault", [default.name]
            node.attr["shape"].shape.CopyFrom(proto)
    return result


def matmul_flops(
    graph_def: Any, shapes: Mapping[str, List[Shape]]
) -> Tuple[Dict[str, int], List[str]]:
    """Return the FLOPs of matrix products by name, and the names of products of unknown size.

    A product inside a loop counts once, because the number of iterations is unknown.
    """
    known: Dict[str, int] = {}
    unknown = []
    for node in graph_def.node:
        if node.op in MATMULS:
            inputs = [parse_input(text) for text in node.input if text[0] != "^"]
            sizes: List[Any] = [shapes[n][i] for n, i in (*inputs, (node.name, 0)) if n in shapes]
            if len(sizes) == 3:
                known[node.name] = _flops(node, *sizes)
            else:
                unknown.append(node.name)
    return known, unknown


def _flops(node: Any, left: Sequence[int], right: Sequence[int], product: Sequence[int]) -> int:
    """Return the FLOPs of a matrix product; each multiplication and each addition is one."""
    if node.op in ("Einsum", "XlaEinsum"):
        operands = [np.broadcast_to(0.0, shape) for shape in (left, right)]
        _, cost = opt_einsum.contract_path(node.attr["equation"].s.decode(), *operands)
        return int(cost.naive_cost)
    # Stored as [m, k], or as [k, m] if it is transposed.
    transposed = node.attr["transpose_a" if node.op == "MatMul" else "adj_x"].b
    return 2 * int(np.prod([*product, left[-2 if transposed else -1]], dtype=np.int64))


def float32_bytes(shapes: Sequence[Shape]) -> int:
    """Return how many bytes float32 tensors of these shapes need; an unknown shape counts as 0."""
    return sum(4 * int(np.prod(s, dtype=np.int64)) for s in shapes if s is not None)
