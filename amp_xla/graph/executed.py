"""Counts what the executed graph really holds: half-precision nodes, casts, XLA clusters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Dict, Iterable, Tuple

from amp_xla.errors import NothingConvertedError, UnsupportedError

_HALF = {14: "bfloat16", 19: "float16"}  # types.proto: DT_BFLOAT16, DT_HALF
_CLUSTER_OPS = ("XlaLaunch", "_XlaRun", "XlaLaunchV2")
_TYPE_ATTRS = ("T", "dtype", "DstT", "Tparams", "Tx", "U")


# Scope of what travels between ranks, in a precision of its own: it computes nothing.
BETWEEN_RANKS = "between_ranks"


@dataclasses.dataclass(frozen=True)
class ExecutedGraph:
    """Counts over the graphs that one ``session.run`` executed, all devices together.

    Attributes:
      nodes: all nodes.
      half_nodes: nodes that compute in half precision, casts to it included.
      half_dtype: ``float16``, ``bfloat16`` or empty.
      half_ops: op type -> number of half nodes.
      casts: Cast nodes from or to half precision.
      clusters: XLA clusters (as launched).
    """

    nodes: int
    half_nodes: int
    half_dtype: str
    half_ops: Dict[str, int]
    casts: int
    clusters: int

    def describe(self) -> str:
        """One line for the log."""
        if self.half_nodes:
            matmuls = sum(n for op, n in self.half_ops.items() if "MatMul" in op or op == "Einsum")
            text = (
                f"{self.half_nodes} of {self.nodes} executed nodes are {self.half_dtype} "
                f"({matmuls} matrix products, {self.casts} casts)"
            )
        else:
            text = f"none of {self.nodes} executed nodes is in half precision"
        return text + (f", {self.clusters} XLA clusters" if self.clusters else ", no XLA clusters")


def _half_type(node: Any) -> Tuple[str, bool]:
    """(half dtype of the node or empty, whether it is a cast to or from it)."""
    if node.op == "Cast":
        for name in ("DstT", "SrcT"):
            found = _HALF.get(node.attr[name].type, "")
            if found:
                return found, True
        return "", False
    for name in _TYPE_ATTRS:
        if name in node.attr and node.attr[name].type in _HALF:
            return _HALF[node.attr[name].type], False
    return "", False


def count(graphs: Iterable[Any]) -> ExecutedGraph:
    """Counts over GraphDefs, function bodies included (XLA moves a cluster's nodes into one).

    Args:
      graphs: ``RunMetadata.partition_graphs`` of a run with ``output_partition_graphs=True``.
    """
    nodes = casts = clusters = 0
    half_ops: Counter = Counter()
    dtypes: Counter = Counter()
    seen_functions = set()
    for graph in graphs:
        bodies = [graph.node]
        for function in graph.library.function:
            if function.signature.name not in seen_functions:
                seen_functions.add(function.signature.name)
                if function.signature.name.startswith("cluster_"):
                    bodies.append(function.node_def)
        for body in bodies:
            for node in body:
                nodes += 1
                clusters += node.op in _CLUSTER_OPS
                half, is_cast = _half_type(node)
                if half and BETWEEN_RANKS not in node.name:
                    half_ops[node.op] += 1
                    dtypes[half] += 1
                    casts += is_cast
    dtype = dtypes.most_common(1)[0][0] if dtypes else ""
    return ExecutedGraph(nodes, sum(half_ops.values()), dtype, dict(half_ops), casts, clusters)


def verify(found: ExecutedGraph, precision: str, half_dtype: Any, why: str, xla: str) -> None:
    """Compares what ran with what was asked for.

    Args:
      found: counts of the first training step.
      precision, xla: as in ``Settings``.
      half_dtype: what this machine can do (``backend.half_dtype()``), None = float32 only.
      why: the clause that goes with ``half_dtype``.

    Raises:
      NothingConvertedError: amp was asked for, the machine can do it, nothing was converted.
      UnsupportedError: half precision or XLA ran though it was off, or XLA was asked for and no
        cluster was made.
    """
    computing = found.half_nodes - found.casts
    if precision == "amp" and half_dtype and computing <= 0:
        raise NothingConvertedError(
            f"precision=amp was asked for and this machine can do {half_dtype} ({why}), but "
            f"{found.describe()}: the graph rewrite did not run. Look for FAILED lines with "
            f"TF_CPP_MIN_LOG_LEVEL=0, and for lists that contradict each other in "
            f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_*; to train without it: AMP_XLA_PRECISION=tf32"
        )
    if precision != "amp" and computing > 0:
        raise UnsupportedError(
            f"precision={precision} was asked for, but {found.describe()}: a Keras policy or "
            f"another library turned mixed precision on"
        )
    if xla != "off" and not found.clusters:
        raise UnsupportedError(
            f"xla={xla} was asked for, but {found.describe()}: this build of TensorFlow has no "
            f"XLA for the device, or every cluster is below --tf_xla_min_cluster_size"
        )
    if xla == "off" and found.clusters:
        raise UnsupportedError(
            f"xla=off was asked for, but {found.describe()}: look for jit options in the "
            f"session's ConfigProto"
        )
