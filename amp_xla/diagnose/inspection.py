"""Inspects what the mixed-precision pass converts in a training graph, without running it."""

from __future__ import annotations

import collections
import itertools
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.diagnose import emulate
from amp_xla.diagnose.inspection_report import BlockerReport, LayerReport, Misfit, Report
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph import nodes, shapes, training_graph, virtual_gpu
from amp_xla.graph.virtual_gpu import Colors

# Constants, and ops that pass them on.
_PASS_ON = frozenset(("Const", "Cast", "Identity", "Enter", "BroadcastTo", "Fill"))
# Ops that do not compute.
_SOURCES = frozenset(
    """Assert Assign AssignAddVariableOp AssignSubVariableOp AssignVariableOp Cast Const Placeholder
    PlaceholderWithDefault ReadVariableOp VarHandleOp VarIsInitializedOp Shape ShapeN Size Rank
    NoOp ResourceGather Print""".split()
)


def inspect(model: Any, batch: Optional[Sequence[Any]] = None) -> Report:
    """Run TensorFlow's auto-mixed-precision pass on a model's training graph and report.

    ``print`` the report to see tables; its ``to_json`` returns the content of amp.json.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``.
      batch: (inputs, targets) as for ``fit``, or the arrays of a ``TrainStep`` in feeding order;
        FLOPs and bytes are computed for their shapes; None = 32 rows of 128 tokens.

    Raises:
      PassFailedError: the pass failed, was skipped or converted nothing; the message says why.
      UnsupportedError: the model is not compiled, or ``batch`` does not fit it.
    """
    training = training_graph.view(model)
    feed_shapes = training.feed_shapes(batch)
    rewritten = virtual_gpu.rewrite(training, training.fetches)
    origins, after = NodeOrigins(training), nodes.by_name(rewritten.graph_def)
    float32 = emulate.tensor_cores(rewritten.graph_def, rounds=False)
    sizes = shapes.static_shapes(float32, training.fetches, feed_shapes)
    flops, unmeasured = shapes.matmul_flops(float32, sizes)
    total, half = sum(flops.values()), nodes.half_nodes(rewritten.graph_def)
    computing = list(_nodes(after, half, origins, sizes, rewritten.lists))
    positions = origins.layer_positions()
    ordered = sorted(computing, key=lambda n: (positions.get(n.layer, len(positions)), n.layer))
    by_layer = itertools.groupby(ordered, lambda node: node.layer)
    return Report(
        tensorflow=backend.tensorflow().__version__ + (" (NVIDIA)" if backend.is_fork() else ""),
        batch=feed_shapes,
        nodes=len(after),
        half_nodes=len(half),
        casts=sum(n.op == "Cast" and nodes.has_type(n, nodes.HALF) for n in after.values()),
        matmul_flops=total,
        half_flops_share=sum(flops[name] for name in half & set(flops)) / max(total, 1),
        unmeasured=unmeasured,
        layers=[_layer(name, list(members)) for name, members in by_layer],
        blockers=_blockers(computing, origins),
        constants=_misfits(after, origins),
    )


class _Node(NamedTuple):
    """A node that computes. The fields from ``size`` on are set only if it stays in float32.

    ``size`` is the bytes of its results. ``op`` and ``blocker`` are type and name of the node that
    keeps it in float32, and ``reason`` is a key of ``inspection_report._REASONS``.
    """

    layer: str
    phase: str
    role: str
    half: bool
    size: int = 0
    op: str = ""
    blocker: str = ""
    reason: str = ""


def _nodes(
    graph: Mapping[str, Any],
    half: Set[str],
    origins: NodeOrigins,
    sizes: Mapping[str, List[shapes.Shape]],
    lists: Colors,
) -> Iterator[_Node]:
    """Yield the computing nodes of the forward and backward pass (the update is never half)."""
    for name, node in sorted(graph.items()):
        origin, converted = origins.of(name), name in half
        in_float32 = nodes.has_type(node, nodes.FLOAT) or nodes.FLOAT in nodes.output_types(node)
        if origin.phase == "update" or node.op in _SOURCES or not (converted or in_float32):
            continue
        role = "matmul" if node.op in nodes.MATMULS else "other"
        role = "softmax" if node.op in ("Softmax", "LogSoftmax") else role
        if converted:
            yield _Node(*origin, role, True)
        else:
            size = shapes.float32_bytes(sizes.get(name, []))
            yield _Node(*origin, role, False, size, *_blocker(name, graph, half, lists))


def _blocker(
    name: str, graph: Mapping[str, Any], half: Set[str], lists: Colors
) -> Tuple[str, str, str]:
    """Return op, name and reason of the blocker of node ``name``; empty strings if it has none.

    The blocker keeps this node in float32; it is the node itself or one before it. These are the
    rules of ``auto_mixed_precision.cc``:

    - White ops become half. Black and unlisted ops stay in float32.
    - Gray and clear ops stay in float32 if a black op reaches them through gray and clear ops only.
    - Other gray ops become half if they are between half ops.
    - Other clear ops become half if they are next to a half op.
    """
    op = graph[name].op
    color = lists.get(op, "unlisted")
    if color in ("black", "unlisted", "white"):
        return op, name, "refused" if color == "white" else color
    # The nearest black op that reaches the node through gray and clear ops.
    seen, queue = {name}, collections.deque([name])
    while queue:
        for source, index in map(nodes.parse_input, graph[queue.popleft()].input):
            if index < 0 or source in seen or source in half or source not in graph:
                continue
            seen.add(source)
            node = graph[source]
            color = lists.get(node.op, "") if nodes.FLOAT in nodes.output_types(node) else ""
            if color == "black":
                return node.op, source, "black"
            if color in ("gray", "clear"):
                queue.append(source)
    return "", "", ""


def _layer(name: str, nodes: Sequence[_Node]) -> LayerReport:
    def ratio(phase: str, role: str) -> str:
        chosen = [node.half for node in nodes if (node.phase, node.role) == (phase, role)]
        return f"{sum(chosen)}/{len(chosen)}" if chosen else "-"

    sizes: Dict[str, Counter] = {"forward": Counter(), "backward": Counter()}
    for node in nodes:
        if node.op:
            sizes[node.phase][node.op] += node.size
    blockers = (sizes["forward"] or sizes["backward"]).most_common(1)
    return LayerReport(
        layer=name,
        matmul=ratio("forward", "matmul"),
        backward=ratio("backward", "matmul"),
        softmax=ratio("forward", "softmax"),
        other=ratio("forward", "other"),
        float32_bytes=sum(node.size for node in nodes),
        blocked_by=blockers[0][0] if blockers else "",
    )


def _blockers(nodes: Sequence[_Node], origins: NodeOrigins) -> List[BlockerReport]:
    blocked: Dict[Tuple[str, str, str], List[_Node]] = {}
    for node in nodes:
        if node.op:
            blocked.setdefault((node.op, node.reason, node.phase), []).append(node)
    reports = []
    for key, members in blocked.items():
        size = sum(node.size for node in members)
        layers = tuple(sorted({node.layer for node in members}))
        example = Counter(node.blocker for node in members).most_common(1)[0][0]
        reports.append(BlockerReport(*key, len(members), size, layers, origins.source(example)))
    return sorted(reports, key=lambda r: (-r.float32_bytes, -r.nodes, r.op))


def _misfits(graph: Mapping[str, Any], origins: NodeOrigins) -> List[Misfit]:
    """Return constants that float16 cannot hold; those that the graph casts to half come first."""
    readers = nodes.consumers(graph)
    out = []
    for name, node in graph.items():
        if node.op != "Const" or node.attr["dtype"].type not in (nodes.FLOAT, nodes.HALF):
            continue
        value = _misfit(tf.make_ndarray(node.attr["value"].tensor).astype(np.float32).ravel())
        reached = nodes.closure([name], lambda n: readers[n] if graph[n].op in _PASS_ON else [])
        half, origin = any(nodes.has_type(graph[n], nodes.HALF) for n in reached), origins.of(name)
        # The optimizer's constants stay in float32 and do no harm.
        if value is not None and (half or origin.phase != "update"):
            problem = "overflows" if abs(value) > 1 else "vanishes"
            out.append(Misfit(origin.layer, value, problem, half, origins.source(name)))
    return sorted(out, key=lambda m: (not m.half, m.problem))


def _misfit(values: Any) -> Optional[float]:
    """Return the largest element that overflows in float16, else the smallest that becomes 0."""
    with np.errstate(over="ignore"):
        rounded = np.float16(values)
    lost = np.isinf(rounded) & np.isfinite(values) | (rounded == 0) & (values != 0)
    if not lost.any():
        return None
    magnitudes = np.abs(values[lost])
    place = magnitudes.argmax() if magnitudes.max() > 1 else magnitudes.argmin()
    return float(values[lost][place])
