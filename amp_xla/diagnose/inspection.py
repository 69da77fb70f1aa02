"""Inspects what the mixed-precision pass converts in a training graph, without running it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from amp_xla import backend
from amp_xla.diagnose import constants
from amp_xla.diagnose.blockers import Blocker, blocker_of, computing, half_nodes
from amp_xla.diagnose.inspection_report import BlockerReport, LayerReport, Report
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph import shapes, training_graph, virtual_gpu
from amp_xla.graph.nodes import by_name
from amp_xla.graph.virtual_gpu import Rewritten


def inspect(
    model: Any,
    gpu: str = "8.0",
    lists: Optional[str] = None,
    batch: Optional[Sequence[Any]] = None,
    batch_size: int = 32,
    length: int = 128,
) -> Report:
    """Run TensorFlow's auto-mixed-precision pass on a model's training graph and report.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``.
      gpu: compute capability of the virtual GPU: 7.0, 8.0, 8.6, 9.0, ...
      lists: ``fork`` (NVIDIA's TensorFlow 1.15), ``stock``, or None = fork on 1.15, stock on 2.x.
      batch: arrays for the placeholders, or (inputs, targets) as for ``fit``; FLOPs and bytes are
        computed for their shapes.
      batch_size, length: without ``batch``, the first and the other unknown dimensions.

    Returns:
      The report; ``print`` it for tables, ``to_json`` is amp.json.

    Raises:
      PassFailedError: the pass failed, was skipped or converted nothing; with its reason.
      UnsupportedError: the model is not compiled, or ``gpu`` or ``lists`` is not possible.
    """
    training = training_graph.view(model)
    if batch is None:
        feed_shapes = {
            name: [d or (length if i else batch_size) for i, d in enumerate(shape)]
            for name, shape in training.feeds.items()
        }
    else:
        arrays = training.arrays(batch)
        feed_shapes = {name: list(array.shape) for name, array in zip(training.feeds, arrays)}
    graph_def = training.export(training.fetches)
    rewritten = virtual_gpu.rewrite(graph_def, training.fetches, gpu, lists)
    origins, after = NodeOrigins(training), by_name(rewritten.graph_def)
    half, counts = half_nodes(rewritten.graph_def), rewritten.counts
    sizes = shapes.static_shapes(rewritten.before, training.fetches, feed_shapes)
    flops, unmeasured = shapes.matmul_flops(rewritten.before, sizes)
    total = sum(flops.values())
    nodes = list(_nodes(rewritten, origins, half, sizes))
    return Report(
        tensorflow=backend.tensorflow().__version__ + (" (NVIDIA)" if backend.is_fork() else ""),
        gpu=rewritten.capability,
        lists=rewritten.lists_name,
        batch=feed_shapes,
        nodes=len(after),
        half_nodes=counts.half_nodes - counts.casts,
        casts=counts.casts,
        matmul_flops=total,
        half_flops_share=sum(flops[name] for name in half & set(flops)) / max(total, 1),
        unmeasured=unmeasured,
        layers=_layers(nodes, origins),
        blockers=_blockers(nodes, origins),
        constants=constants.misfits(after, origins),
    )


class _Node(NamedTuple):
    """A computing node; ``size`` (bytes) and ``blocker`` are those of a node in float32."""

    layer: str
    phase: str
    role: str
    half: bool
    size: int = 0
    blocker: Blocker = Blocker()


def _nodes(
    rewritten: Rewritten,
    origins: NodeOrigins,
    half: Set[str],
    sizes: Mapping[str, List[shapes.Shape]],
) -> Iterator[_Node]:
    """Yield the computing nodes of the forward and backward pass (the update is never half)."""
    nodes = by_name(rewritten.before)
    for name in sorted(computing(nodes.values(), half)):
        origin, role = origins.of(name), _role(nodes[name].op)
        if origin.phase == "update":
            continue
        if name in half:
            yield _Node(*origin, role, True)
        else:
            size = shapes.float32_bytes(sizes.get(name, []))
            blocker = blocker_of(name, nodes, half, rewritten.lists)
            yield _Node(*origin, role, False, size, blocker)


def _layers(nodes: Sequence[_Node], origins: NodeOrigins) -> List[LayerReport]:
    members: Dict[str, List[_Node]] = {}
    for node in nodes:
        members.setdefault(node.layer, []).append(node)
    positions = origins.layer_positions()
    ordered = sorted(members, key=lambda n: (positions.get(n, len(positions)), n))
    return [_layer(name, members[name]) for name in ordered]


def _layer(name: str, nodes: Sequence[_Node]) -> LayerReport:
    def ratio(phase: str, role: str) -> str:
        chosen = [node.half for node in nodes if (node.phase, node.role) == (phase, role)]
        return f"{sum(chosen)}/{len(chosen)}" if chosen else "-"

    sizes: Dict[str, Counter] = {"forward": Counter(), "backward": Counter()}
    for node in nodes:
        if node.blocker.op:
            sizes[node.phase][node.blocker.op] += node.size
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
        if node.blocker.op:
            key = (node.blocker.op, node.blocker.reason, node.phase)
            blocked.setdefault(key, []).append(node)
    reports = []
    for (op, reason, phase), members in blocked.items():
        size = sum(node.size for node in members)
        layers = tuple(sorted({node.layer for node in members}))
        example = Counter(node.blocker.node for node in members).most_common(1)[0][0]
        source = origins.source(example)
        reports.append(BlockerReport(op, reason, phase, len(members), size, layers, source))
    return sorted(reports, key=lambda r: (-r.float32_bytes, -r.nodes, r.op))


def _role(op: str) -> str:
    if "MatMul" in op or "Einsum" in op:
        return "matmul"
    return "softmax" if op in ("Softmax", "LogSoftmax") else "other"
