"""Makes a half-precision graph run on a CPU at float32 speed, and round as tensor cores do.

Tensor cores read half precision, multiply exactly, add in float32 and write half precision. So a
half node, made by AMP's pass or by a Keras policy, becomes a float32 node whose result is rounded
to half and stored in float32. A cast to half becomes a rounding, and a cast to float32 an identity.
Element-wise half kernels on GPUs also compute in float32 and round once. Two things are not
modelled: the order of additions, and kernels that sum in half precision.
"""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

from amp_xla.backend import tf
from amp_xla.graph.nodes import FLOAT, HALF, has_type, output_types, parse_input

# Ops that output elements of their inputs, zeros or ones (up to sign): rounding changes nothing.
EXACT = frozenset(
    """Abs BatchToSpaceND BroadcastTo CheckNumerics ClipByValue Concat ConcatV2 DepthToSpace
    DynamicPartition DynamicStitch EnsureShape Enter Exit ExpandDims Fill Gather GatherNd GatherV2
    GuaranteeConst Identity IdentityN LoopCond Max MaxPool Maximum Merge Min Minimum MirrorPad Neg
    NextIteration OnesLike Pack Pad PadV2 ParallelConcat PreventGradient Relu Relu6 Relu6Grad
    ReluGrad Reshape Reverse ReverseSequence ReverseV2 Select SelectV2 Sign Slice Snapshot
    SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient StridedSlice StridedSliceGrad
    Switch TensorArrayReadV3 TensorArrayWriteV3 TensorArrayGatherV3 TensorArrayScatterV3
    TensorArrayConcatV3 TensorArraySplitV3 TensorArrayV3 Tile TopK TopKV2 Transpose Unpack
    ZerosLike""".split()
)
SUFFIX = "/rounded_to_half"


def tensor_cores(graph_def: Any, rounds: bool = True) -> Any:
    """Return a float32 GraphDef that computes what a half graph computes on tensor cores.

    Nodes keep their names. If a result must be rounded, its consumers read the node
    ``<name>/rounded_to_half`` (``<name>/rounded_to_half_1`` for output 1, ...). If
    ``rounds`` is False, nothing is rounded: the results are those of the graph in float32.
    """
    result = tf.GraphDef()
    result.library.CopyFrom(graph_def.library)
    result.versions.CopyFrom(graph_def.versions)
    moved: Dict[Tuple[str, int], str] = {}
    new: List[Any] = []
    for node in graph_def.node:
        copy = result.node.add()
        copy.CopyFrom(node)
        if node.op == "Cast":
            _cast(copy, new, rounds)
        elif has_type(node, HALF):
            _compute_in_float32(copy, output_types(node) if rounds else [], new, moved)
    for node in result.node:
        for position, text in enumerate(node.input):
            node.input[position] = moved.get(parse_input(text), text)
    result.node.extend(new)
    return result


def rounded(graph_def: Any) -> Set[str]:
    """Return the names of nodes whose output 0 ``tensor_cores`` rounds to half in this graph."""
    names = {node.name for node in graph_def.node}
    return {name for name in names if name + SUFFIX in names}


def cast_to_half(graph_def: Any) -> Set[str]:
    """Return the names of the nodes whose output is cast to half."""
    casts = [n for n in graph_def.node if n.op == "Cast" and n.attr["DstT"].type == HALF]
    return {parse_input(node.input[0])[0] for node in casts}


def _compute_in_float32(
    node: Any, types: List[int], new: List[Any], moved: Dict[Tuple[str, int], str]
) -> None:
    """Turn a half node into a float32 one; append to ``new`` the nodes that round its outputs.

    ``types``: types of the node's outputs; empty = do not round. ``moved``: dictionary to extend,
    (node, output) -> name of the node that rounds this output.
    """
    for attr in node.attr.values():
        if attr.type == HALF:
            attr.type = FLOAT
        for position, dtype in enumerate(attr.list.type):
            if dtype == HALF:
                attr.list.type[position] = FLOAT
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(tensor).astype("float32")))
    elif node.op not in EXACT:
        for index, dtype in enumerate(types):
            if dtype == HALF:
                name = node.name + SUFFIX + (f"_{index}" if index else "")
                new.append(_cast_node(name + "/half", f"{node.name}:{index}", FLOAT, HALF))
                new.append(_cast_node(name, name + "/half"))
                moved[node.name, index] = name


def _cast_node(name: str, source: str, before: int = HALF, after: int = FLOAT) -> Any:
    node = tf.NodeDef(name=name, op="Cast", input=[source])
    node.attr["SrcT"].type, node.attr["DstT"].type = before, after
    return node


def _cast(copy: Any, new: List[Any], rounds: bool) -> None:
    """Replace half by float32 in a cast; with ``rounds``, a cast to half still rounds.

    A cast from float32 to float32 that does not round becomes an identity.
    """
    before, after = copy.attr["SrcT"], copy.attr["DstT"]
    to_half = after.type == HALF
    for end in (before, after):
        end.type = FLOAT if end.type == HALF else end.type
    if to_half and rounds:
        new.append(_cast_node(copy.name + "/half", copy.input[0], before.type, HALF))
        copy.input[0], before.type = copy.name + "/half", HALF
    elif before.type == after.type == FLOAT:
        copy.op = "Identity"
        del copy.attr["SrcT"], copy.attr["DstT"]
        copy.attr.pop("Truncate", None)
        copy.attr["T"].type = FLOAT
