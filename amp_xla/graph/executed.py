"""Counts half-precision nodes, casts and XLA clusters in the executed graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Dict, Iterable

from amp_xla.errors import NothingConvertedError, UnsupportedError
from amp_xla.graph.nodes import BFLOAT16, HALF, has_type
from amp_xla.settings import AUTO

_HALF = {BFLOAT16: "bfloat16", HALF: "float16"}
_CLUSTER_OPS = ("XlaLaunch", "_XlaRun", "XlaLaunchV2")

# Name scope of half-precision tensors that ranks exchange; they are not counted.
BETWEEN_RANKS = "between_ranks"


@dataclasses.dataclass(frozen=True)
class ExecutedGraph:
    """Counts over the graphs that one ``session.run`` executed, on all devices.

    Attributes:
      half_nodes: nodes in half precision, including ``casts``.
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
            matmuls = sum(n for op, n in self.half_ops.items() if "MatMul" in op or "Einsum" in op)
            text = (
                f"{self.half_nodes} of {self.nodes} executed nodes are {self.half_dtype} "
                f"({matmuls} matrix products, {self.casts} casts)"
            )
        else:
            text = f"none of {self.nodes} executed nodes is in half precision"
        return text + (f", {self.clusters} XLA clusters" if self.clusters else ", no XLA clusters")


def count(graphs: Iterable[Any]) -> ExecutedGraph:
    """Count nodes, casts and XLA clusters of ``RunMetadata.partition_graphs``."""
    nodes = casts = clusters = 0
    half_ops: Counter = Counter()
    dtypes: Counter = Counter()
    for node in (node for graph in graphs for node in graph.node):
        nodes += 1
        clusters += node.op in _CLUSTER_OPS
        half = next((name for dtype, name in _HALF.items() if has_type(node, dtype)), "")
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
      precision, xla: as in ``Settings``; with ``xla`` = ``auto``, any number of clusters is right.
      half_dtype: this machine's half-precision dtype; None = it has none.
      why: the reason for ``half_dtype``, as a clause.

    Raises:
      NothingConvertedError: amp is set and ``half_dtype`` exists, but no node except casts uses it.
      UnsupportedError: half precision or XLA ran although it is off, or XLA is on and no cluster
        was made.
    """
    computing = counts.half_nodes - counts.casts
    if precision == "amp" and half_dtype and computing <= 0:
        raise NothingConvertedError(
            f"precision=amp is set and this machine has {half_dtype} ({why}), but "
            f"{counts.describe()}: the graph rewrite did not run. Look for options of your session "
            f"(K.set_session) that turn it off, for FAILED lines with TF_CPP_MIN_LOG_LEVEL=0, and "
            f"for lists that contradict each other in TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_*; to "
            f"train without it: AMP_XLA_PRECISION=tf32"
        )
    if precision != "amp" and computing > 0:
        raise UnsupportedError(
            f"precision={precision} is set, but {counts.describe()}: a Keras policy or another "
            f"library turned mixed precision on"
        )
    if xla not in ("off", AUTO) and not counts.clusters:
        raise UnsupportedError(
            f"xla={xla} is set, but {counts.describe()}: this build of TensorFlow has no XLA for "
            f"the device, or every cluster is below --tf_xla_min_cluster_size"
        )
    if xla == "off" and counts.clusters:
        raise UnsupportedError(
            f"xla=off is set, but {counts.describe()}: look for jit options in the session's "
            f"ConfigProto"
        )
