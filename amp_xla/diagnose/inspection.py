"""Inspects what the mixed-precision pass makes of a training graph, without running it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from amp_xla import backend
from amp_xla.diagnose import constants
from amp_xla.diagnose.blockers import Blocker, blocker_of, computing, half_nodes
from amp_xla.diagnose.inspection_report import (
    AlignmentReport,
    BlockerReport,
    LayerReport,
    Report,
)
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph import shapes, training_graph, virtual_gpu
from amp_xla.graph.activations import activation_bytes
from amp_xla.graph.nodes import by_name
from amp_xla.graph.training_graph import TrainingGraph
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
    return _Inspection(training, rewritten, feed_shapes).report()


class _Node(NamedTuple):
    """A computing node; ``size`` (bytes) and ``blocker`` are those of a node in float32."""

    layer: str
    phase: str
    role: str
    half: bool
    size: int = 0
    blocker: Blocker = Blocker()


class _Inspection:
    """Builds the report on one rewritten graph, with FLOPs and bytes for ``feed_shapes``."""

    def __init__(
        self, training: TrainingGraph, rewritten: Rewritten, feed_shapes: Mapping[str, List[int]]
    ) -> None:
        self._rewritten, self._feed_shapes = rewritten, feed_shapes
        self._origins = NodeOrigins(training)
        self._after = by_name(rewritten.graph_def)
        self._half = half_nodes(rewritten.graph_def)
        self._shapes = shapes.static_shapes(rewritten.before, training.fetches, feed_shapes)
        self._products, self._unmeasured = shapes.matmuls(rewritten.before, self._shapes)

    def report(self) -> Report:
        rewritten, counts = self._rewritten, self._rewritten.counts
        total = sum(p.flops for p in self._products)
        half = sum(p.flops for p in self._products if p.name in self._half)
        nodes = list(self._nodes())
        kept, recomputed = activation_bytes(self._after, self._shapes)
        nvidia = " (NVIDIA)" if backend.is_fork() else ""
        return Report(
            tensorflow=backend.tensorflow().__version__ + nvidia,
            gpu=rewritten.capability,
            lists=rewritten.lists_name,
            batch=self._feed_shapes,
            nodes=len(self._after),
            half_nodes=counts.half_nodes - counts.casts,
            casts=counts.casts,
            matmul_flops=total,
            half_flops_share=half / total if total else 0.0,
            unmeasured=self._unmeasured,
            kept_bytes=kept,
            recomputed_bytes=recomputed,
            layers=self._layers(nodes),
            blockers=self._blockers(nodes),
            alignment=self._alignment(total),
            constants=constants.misfits(self._after, self._origins),
        )

    def _nodes(self) -> Iterator[_Node]:
        """Yield the computing nodes of the forward and backward pass (the update is never half)."""
        nodes = by_name(self._rewritten.before)
        for name in sorted(computing(nodes.values(), self._half)):
            origin, role = self._origins.of(name), _role(nodes[name].op)
            if origin.phase == "update":
                continue
            if name in self._half:
                yield _Node(*origin, role, True)
            else:
                size = shapes.element_bytes(self._shapes.get(name, []))
                blocker = blocker_of(name, nodes, self._half, self._rewritten.lists)
                yield _Node(*origin, role, False, size, blocker)

    def _layers(self, nodes: Sequence[_Node]) -> List[LayerReport]:
        members: Dict[str, List[_Node]] = {}
        for node in nodes:
            members.setdefault(node.layer, []).append(node)
        positions = self._origins.layer_positions()
        ordered = sorted(members, key=lambda n: (positions.get(n, len(positions)), n))
        return [self._layer(name, members[name]) for name in ordered]

    @staticmethod
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

    def _blockers(self, nodes: Sequence[_Node]) -> List[BlockerReport]:
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
            source = self._origins.source(example)
            reports.append(BlockerReport(op, reason, phase, len(members), size, layers, source))
        return sorted(reports, key=lambda r: (-r.float32_bytes, -r.nodes, r.op))

    def _alignment(self, total: int) -> List[AlignmentReport]:
        shares: Dict[Tuple[str, Tuple[int, ...]], float] = {}
        for product in self._products:
            if product.unaligned:
                key = (self._origins.of(product.name).layer, product.unaligned)
                shares[key] = shares.get(key, 0.0) + product.flops / max(total, 1)
        reports = [AlignmentReport(*key, share) for key, share in shares.items()]
        return sorted(reports, key=lambda r: -r.flops_share)


def _role(op: str) -> str:
    if "MatMul" in op or "Einsum" in op:
        return "matmul"
    return "softmax" if op in ("Softmax", "LogSoftmax") else "other"
