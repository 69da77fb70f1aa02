"""Inspects what the mixed-precision pass makes of a training graph, without running it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from amp_xla import backend
from amp_xla.diagnose import constants
from amp_xla.diagnose.blockers import Blame, computing, half_nodes
from amp_xla.diagnose.inspection_report import (
    ROLES,
    AlignmentReport,
    BlockerReport,
    ConstantReport,
    LayerReport,
    Ratio,
    Report,
)
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph import shapes, training_graph, virtual_gpu
from amp_xla.graph.activations import activation_bytes
from amp_xla.graph.nodes import FLOAT, HALF, by_name
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


class _Inspection:
    """Builds the report on one rewritten graph, with FLOPs and bytes for ``feed_shapes``."""

    def __init__(
        self, training: TrainingGraph, rewritten: Rewritten, feed_shapes: Mapping[str, List[int]]
    ) -> None:
        self._rewritten, self._feed_shapes = rewritten, feed_shapes
        self._origins = NodeOrigins(training)
        self._before, self._after = by_name(rewritten.before), by_name(rewritten.graph_def)
        self._half = half_nodes(rewritten.graph_def)
        self._shapes = shapes.static_shapes(rewritten.before, training.fetches, feed_shapes)
        self._products, self._unmeasured = shapes.matmuls(rewritten.before, self._shapes)

    def report(self) -> Report:
        rewritten, counts = self._rewritten, self._rewritten.counts
        total = sum(p.flops for p in self._products)
        half = sum(p.flops for p in self._products if p.name in self._half)
        layers, blockers = self._layers_and_blockers()
        casts = Counter(
            (n.attr["SrcT"].type, n.attr["DstT"].type)
            for n in self._after.values()
            if n.op == "Cast"
        )
        activations = activation_bytes(self._after, self._shapes)
        nvidia = " (NVIDIA)" if backend.is_fork() else ""
        return Report(
            tensorflow=backend.tensorflow().__version__ + nvidia,
            gpu=rewritten.capability,
            lists=rewritten.lists_name,
            batch=self._feed_shapes,
            nodes=len(self._after),
            half_nodes=counts.half_nodes - counts.half_ops.get("Cast", 0),
            casts_to_half=casts[FLOAT, HALF],
            casts_to_float=casts[HALF, FLOAT],
            matmul_flops=total,
            half_flops_share=half / total if total else 0.0,
            unmeasured=self._unmeasured,
            kept_bytes=activations.saved,
            recomputed_bytes=activations.recomputed,
            layers=layers,
            blockers=blockers,
            alignment=self._alignment(total),
            constants=self._constants(),
        )

    def _layers_and_blockers(self) -> Tuple[List[LayerReport], List[BlockerReport]]:
        blame = Blame(self._before, self._half, self._rewritten.lists)
        ratios: Dict[Tuple[str, str, str], Ratio] = {}
        float32: Dict[Tuple[str, str], Counter] = {}
        blocked: Dict[Tuple[str, str, str], List[Tuple[str, int, str]]] = {}
        for name in sorted(computing(self._before.values(), self._half)):
            origin, op = self._origins.of(name), self._before[name].op
            if origin.phase == "update":
                continue
            key = (*origin, self._origins.role(name, op))
            ratios[key] = ratios.get(key, Ratio()) + Ratio(int(name in self._half), 1)
            if name in self._half:
                continue
            size = shapes.element_bytes(self._shapes.get(name, []))
            blocker = blame.of(name)
            float32.setdefault(origin, Counter())[blocker.op, blocker.node] += size
            if blocker.op:
                group = (blocker.op, blocker.reason, origin.phase)
                blocked.setdefault(group, []).append((origin.layer, size, blocker.node))
        positions = self._origins.layer_positions()
        names = {layer for layer, _, _ in ratios}
        ordered = sorted(names, key=lambda n: (positions.get(n, len(positions)), n))
        return [self._layer(n, ratios, float32) for n in ordered], self._blockers(blocked)

    def _layer(self, name: str, ratios: Any, float32: Mapping[Any, Counter]) -> LayerReport:
        roles, blockers, size = [], [], 0
        for phase in ("forward", "backward"):
            roles.append({role: ratios.get((name, phase, role), Ratio()) for role in ROLES})
            counter = float32.get((name, phase), Counter())
            size += sum(counter.values())
            blockers += [key for key, _ in counter.most_common() if key[0]][:1]
        op, node = blockers[0] if blockers else ("", "")
        return LayerReport(name, roles[0], roles[1], size, op, self._origins.source_text(node))

    def _blockers(self, blocked: Mapping[Any, List[Tuple[str, int, str]]]) -> List[BlockerReport]:
        reports = []
        for (op, reason, phase), members in blocked.items():
            example = Counter(node for _, _, node in members).most_common(1)[0][0]
            reports.append(
                BlockerReport(
                    op,
                    reason,
                    phase,
                    len(members),
                    sum(size for _, size, _ in members),
                    tuple(sorted({layer for layer, _, _ in members})),
                    example,
                    self._origins.source_text(example),
                )
            )
        return sorted(reports, key=lambda r: (-r.float32_bytes, -r.nodes, r.op))

    def _alignment(self, total: int) -> List[AlignmentReport]:
        groups: Dict[Any, List[shapes.MatMul]] = {}
        for product in self._products:
            if product.unaligned:
                layer = self._origins.of(product.name).layer
                key = (layer, product.m, product.n, product.k, product.unaligned)
                groups.setdefault(key, []).append(product)
        reports = []
        for (layer, m, n, k, unaligned), members in groups.items():
            count, flops = sum(p.batch for p in members), sum(p.flops for p in members)
            reports.append(AlignmentReport(layer, m, n, k, unaligned, count, flops / max(total, 1)))
        return sorted(reports, key=lambda r: -r.flops_share)

    def _constants(self) -> List[ConstantReport]:
        return [
            ConstantReport(
                self._origins.of(m.node).layer, *m[1:], self._origins.source_text(m.node)
            )
            for m in constants.misfits(self._after)
            # The optimizer's constants stay in float32 and do no harm.
            if m.half or self._origins.of(m.node).phase != "update"
        ]
