"""A rewritten graph that runs on CPU and rounds where tensor cores round.

Tensor cores read half precision, multiply exactly, add up in float32 and write half precision.
So each half node becomes its float32 twin, whose result is rounded to half and carried on in
float32. The rewrite's casts become a rounding (to half) or nothing (to float32).
Element-wise half kernels on GPUs also compute in float32 and round once. What this does not
model: the order of additions, and reductions that a kernel keeps in half.
"""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

from amp_xla.backend import tf
from amp_xla.graph.nodes import FLOAT, HALF, output_types, parse_input

# Their outputs are among their inputs, zeros or ones (up to sign), so rounding changes nothing.
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


def tensor_cores(graph_def: Any) -> Any:
    """A GraphDef without half tensors that computes what ``graph_def`` would on tensor cores.

    Args:
      graph_def: output of ``virtual_gpu.rewrite``.

    Returns:
      GraphDef. A node keeps its name; where its result has to be rounded, the rounded tensor is
      output 0 of ``<name>/rounded_to_half`` (``<name>/rounded_to_half_1`` for output 1, ...),
      which is what the consumers read.
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
            _cast(copy, new)
        elif _is_half(node):
            _compute_in_float32(copy, node, new, moved)
    fresh: Set[str] = {node.name for node in new}
    result.node.extend(new)
    for node in result.node:
        if node.name in fresh:
            continue
        for position, text in enumerate(node.input):
            replacement = moved.get(parse_input(text))
            if replacement is not None:
                node.input[position] = replacement
    return result


def carrier(graph_def: Any) -> Dict[str, str]:
    """Node name -> name of the node that holds its rounded output 0, where that differs."""
    names = {node.name for node in graph_def.node}
    return {n: n + SUFFIX for n in names if n + SUFFIX in names}


def rounding(graph_def: Any) -> Set[str]:
    """Names of the nodes whose float32 outputs a graph of ``tensor_cores`` rounds to half."""
    found = set()
    for node in graph_def.node:
        if node.op == "Cast" and node.attr["DstT"].type == HALF:
            found.add(parse_input(node.input[0])[0])
    return found


def _is_half(node: Any) -> bool:
    return any(a.type == HALF or HALF in a.list.type for a in node.attr.values())


def _compute_in_float32(copy: Any, node: Any, new: List[Any], moved: Dict) -> None:
    types = output_types(node)
    for attr in copy.attr.values():
        if attr.type == HALF:
            attr.type = FLOAT
        for position, dtype in enumerate(attr.list.type):
            if dtype == HALF:
                attr.list.type[position] = FLOAT
    if node.op == "Const":
        _float_constant(copy)
    elif node.op not in EXACT:
        for index, dtype in enumerate(types):
            if dtype == HALF:
                name = node.name + SUFFIX + (f"_{index}" if index else "")
                new += _rounding(name, f"{node.name}:{index}")
                moved[node.name, index] = name


def _float_constant(copy: Any) -> None:
    tensor = copy.attr["value"].tensor
    tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(tensor).astype("float32")))


def _rounding(name: str, source: str) -> List[Any]:
    """Nodes that round a float32 tensor to half and back; the last one is called ``name``."""
    return [_cast_node(name + "/half", source, FLOAT, HALF), _cast_node(name, name + "/half")]


def _cast_node(name: str, source: str, before: int = HALF, after: int = FLOAT) -> Any:
    node = tf.NodeDef(name=name, op="Cast", input=[source])
    node.attr["SrcT"].type, node.attr["DstT"].type = before, after
    return node


def _cast(copy: Any, new: List[Any]) -> None:
    """A Cast to half rounds, a Cast from half finds its input in float32 already."""
    source, target = copy.attr["SrcT"].type, copy.attr["DstT"].type
    if source == HALF:
        copy.attr["SrcT"].type = source = FLOAT
    if target == HALF:
        new.append(_cast_node(copy.name + "/half", copy.input[0], source, HALF))
        copy.input[0] = copy.name + "/half"
        copy.attr["SrcT"].type, copy.attr["DstT"].type = HALF, FLOAT
    elif target == source == FLOAT:
        copy.op = "Identity"
        del copy.attr["SrcT"], copy.attr["DstT"]
        copy.attr.pop("Truncate", None)
        copy.attr["T"].type = FLOAT
