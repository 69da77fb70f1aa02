"""Counts half-precision nodes, casts and XLA clusters in the executed graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Dict, Iterable

from amp_xla.errors import NothingConvertedError, UnsupportedError

_HALF = {14: "bfloat16", 19: "float16"}  # types.proto: DT_BFLOAT16, DT_HALF
_CLUSTER_OPS = ("XlaLaunch", "_XlaRun", "XlaLaunchV2")
_TYPE_ATTRS = ("T", "dtype", "DstT", "Tparams", "Tx", "U")

# Name scope of half-precision tensors that ranks exchange; they are not counted.
BETWEEN_RANKS = "between_ranks"


@dataclasses.dataclass(frozen=True)
class ExecutedGraph:
    """Counts over the graphs that one ``session.run`` executed, on all devices.

    Attributes:
      half_nodes: nodes in half precision, casts to it included.
      half_dtype: ``float16``, ``bfloat16`` or empty.
      half_ops: op type -> number of half nodes.
      casts: Cast nodes from or to half precision.
      clusters: launched XLA clusters.
    """

    nodes: int
    half_nodes: int
    half_dtype: str
    half_ops: Dict[str, int]
    casts: int
    clusters: int

    def describe(self) -> str:
        """Return one line for the log."""
        if self.half_nodes:
            matmuls = sum(n for op, n in self.half_ops.items() if "MatMul" in op or op == "Einsum")
            text = (
                f"{self.half_nodes} of {self.nodes} executed nodes are {self.half_dtype} "
                f"({matmuls} matrix products, {self.casts} casts)"
            )
        else:
            text = f"none of {self.nodes} executed nodes is in half precision"
        return text + (f", {self.clusters} XLA clusters" if self.clusters else ", no XLA clusters")


def _half_type(node: Any) -> str:
    """Return a node's half dtype (for a cast: of its input or output); empty if it has none."""
    names = ("DstT", "SrcT") if node.op == "Cast" else _TYPE_ATTRS
    types = (node.attr[name].type for name in names if name in node.attr)
    return next((_HALF[dtype] for dtype in types if dtype in _HALF), "")


def count(graphs: Iterable[Any]) -> ExecutedGraph:
    """Count over GraphDefs and the functions that hold XLA clusters.

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
            name = function.signature.name
            if name not in seen_functions and name.startswith("cluster_"):
                bodies.append(function.node_def)
            seen_functions.add(name)
        for node in (node for body in bodies for node in body):
            nodes += 1
            clusters += node.op in _CLUSTER_OPS
            half = _half_type(node)
            if half and BETWEEN_RANKS not in node.name:
                half_ops[node.op] += 1
                dtypes[half] += 1
                casts += node.op == "Cast"
    dtype = dtypes.most_common(1)[0][0] if dtypes else ""
    return ExecutedGraph(nodes, sum(half_ops.values()), dtype, dict(half_ops), casts, clusters)


def verify(counts: ExecutedGraph, precision: str, half_dtype: Any, why: str, xla: str) -> None:
    """Raise an error if the first training step contradicts the settings.

    Args:
      counts: counts of the first training step.
      precision, xla: as in ``Settings``.
      half_dtype, why: half precision of this machine (None = none), and the reason.

    Raises:
      NothingConvertedError: amp is set and the machine has half precision, but no node ran in it.
      UnsupportedError: half precision or XLA ran although it is off, or XLA is on and no cluster
        was made.
    """
    computing = counts.half_nodes - counts.casts
    if precision == "amp" and half_dtype and computing <= 0:
        raise NothingConvertedError(
            f"precision=amp is set and this machine has {half_dtype} ({why}), but "
            f"{counts.describe()}: the graph rewrite did not run. Look for FAILED lines with "
            f"TF_CPP_MIN_LOG_LEVEL=0, and for lists that contradict each other in "
            f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_*; to train without it: AMP_XLA_PRECISION=tf32"
        )
    if precision != "amp" and computing > 0:
        raise UnsupportedError(
            f"precision={precision} is set, but {counts.describe()}: a Keras policy or another "
            f"library turned mixed precision on"
        )
    if xla != "off" and not counts.clusters:
        raise UnsupportedError(
            f"xla={xla} is set, but {counts.describe()}: this build of TensorFlow has no XLA for "
            f"the device, or every cluster is below --tf_xla_min_cluster_size"
        )
    if xla == "off" and counts.clusters:
        raise UnsupportedError(
            f"xla=off is set, but {counts.describe()}: look for jit options in the session's "
            f"ConfigProto"
        )
