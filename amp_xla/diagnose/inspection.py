"""What mixed precision makes of a training graph, found without running it."""

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
from amp_xla.diagnose.places import OUTSIDE, Places
from amp_xla.graph import activations, shapes, training_graph, virtual_gpu
from amp_xla.graph.nodes import FLOAT, HALF, by_name
from amp_xla.graph.training_graph import TrainingGraph
from amp_xla.graph.virtual_gpu import Rewritten

_NAMED = 5  # examples given of a list that may be long


def inspect(
    model: Any,
    gpu: str,
    lists: Optional[str],
    batch: Optional[Sequence[Any]] = None,
    batch_size: int = 32,
    length: int = 128,
) -> Any:
    """See ``amp_xla.diagnose.inspect``."""

    training = training_graph.view(model)
    if batch is None:
        shapes = _shapes(training, batch_size, length)
    else:
        shapes = training_graph.placeholder_shapes(training, batch)
    graph_def = training.export(training.fetches)
    rewritten = virtual_gpu.rewrite(graph_def, training.fetches, gpu, lists)
    return _build(training, rewritten, shapes)


def _shapes(training: Any, batch_size: int, length: int) -> Dict[str, List[int]]:
    """Placeholder shapes with the unknown dimensions filled in: the first is the batch."""
    found = {}
    for name in training.feeds:
        shape = training.graph.get_tensor_by_name(f"{name}:0").shape
        if shape.rank is not None:
            unknown = [batch_size] + [length] * (shape.rank - 1)
            found[name] = [d or u for d, u in zip(shape.as_list(), unknown)]
    return found


class _Builder:
    """Collects a report; one pass over the rewritten graph for each part of it."""

    def __init__(
        self, training: TrainingGraph, rewritten: Rewritten, batch: Mapping[str, Sequence[int]]
    ) -> None:
        self.places = Places(training)
        self.before, self.after = by_name(rewritten.before), by_name(rewritten.graph_def)
        self.half = half_nodes(rewritten.graph_def)
        self.lists = rewritten.lists
        self.shapes = shapes.static_shapes(rewritten.before, training.fetches, batch)
        self.products, self.unmeasured = shapes.matmuls(rewritten.before, self.shapes)

    def layers_and_blockers(self) -> Tuple[List[LayerReport], List[BlockerReport]]:
        blame = Blame(self.before, self.half, self.lists)
        ratios: Dict[Tuple[str, str, str], Ratio] = {}
        kept: Dict[Tuple[str, str], Counter] = {}
        blocked: Dict[Tuple[str, str, str], List[Any]] = {}
        for name in sorted(computing(self.before.values(), self.half)):
            place, op = self.places.of(name), self.before[name].op
            if place.phase == "update":
                continue
            key = (place.layer, place.phase, self.places.role(name, op))
            ratios[key] = ratios.get(key, Ratio()) + Ratio(int(name in self.half), 1)
            if name in self.half:
                continue
            size = shapes.element_bytes(self.shapes.get(name, []))
            found = blame.of(name)
            kept.setdefault(place, Counter())[found.op, found.node] += size
            if found.op:
                group = (found.op, found.reason, place.phase)
                blocked.setdefault(group, []).append((place.layer, size, found.node))
        layers = [self._layer(n, ratios, kept) for n in self._in_order(ratios)]
        return layers, self._blockers(blocked)

    def _in_order(self, ratios: Mapping[Tuple[str, str, str], Ratio]) -> List[str]:
        """Layers in the order in which the model computes them, the outside last."""
        first: Dict[str, int] = {}
        for name in self.before:
            place = self.places.of(name)
            position = self.places.order.get(self.places.original(name), 1 << 60)
            if place.phase == "forward":
                first[place.layer] = min(position, first.get(place.layer, position))
        names = {layer for layer, _, _ in ratios}
        return sorted(names, key=lambda n: (n == OUTSIDE, first.get(n, 1 << 60), n))

    def _layer(self, name: str, ratios: Any, kept: Mapping[Any, Counter]) -> LayerReport:
        roles, blockers, size = {}, {}, 0
        for phase in ("forward", "backward"):
            roles[phase] = {role: ratios.get((name, phase, role), Ratio()) for role in ROLES}
            counter = kept.get((name, phase), Counter())
            size += sum(counter.values())
            named = [key for key, _ in counter.most_common() if key[0]]
            blockers[phase] = named[0] if named else ("", "")
        op, node = blockers["forward"]
        return LayerReport(
            name,
            roles["forward"],
            roles["backward"],
            size,
            op,
            self._source(node),
            blockers["backward"][0],
        )

    def _blockers(self, blocked: Mapping[Any, List[Any]]) -> List[BlockerReport]:
        reports = []
        for (op, reason, phase), kept in blocked.items():
            example = Counter(node for _, _, node in kept).most_common(1)[0][0]
            reports.append(
                BlockerReport(
                    op,
                    reason,
                    phase,
                    len(kept),
                    sum(size for _, size, _ in kept),
                    tuple(sorted({layer for layer, _, _ in kept})),
                    example,
                    self._source(example),
                )
            )
        return sorted(reports, key=lambda r: (-r.float32_bytes, -r.nodes, r.op))

    def alignment(self, total: int) -> List[AlignmentReport]:
        groups: Dict[Any, List[shapes.MatMul]] = {}
        for product in self.products:
            if product.unaligned:
                layer = self.places.of(product.name).layer
                key = (layer, product.m, product.n, product.k, product.unaligned)
                groups.setdefault(key, []).append(product)
        reports = [
            AlignmentReport(
                layer,
                m,
                n,
                k,
                unaligned,
                sum(p.batch for p in members),
                sum(p.flops for p in members) / max(total, 1),
                members[0].padding - 1.0,
            )
            for (layer, m, n, k, unaligned), members in groups.items()
        ]
        return sorted(reports, key=lambda r: -r.flops_share)

    def misfits(self) -> List[ConstantReport]:
        return [
            ConstantReport(
                self.places.of(m.node).layer,
                m.value,
                m.becomes,
                m.problem,
                m.half,
                m.used_by[:_NAMED],
                self._source(m.node),
            )
            for m in constants.misfits(self.after)
            # What the optimizer computes with stays in float32 and is no one's worry.
            if m.half or self.places.of(m.node).phase != "update"
        ]

    def _source(self, node: str) -> str:
        source = self.places.source(node) if node else None
        return "" if source is None else str(source)


def _build(
    training: TrainingGraph, rewritten: Rewritten, batch: Mapping[str, Sequence[int]]
) -> Report:
    """The report on one rewritten graph.

    Args:
      training: the view of the graph that was rewritten.
      rewritten: what the pass made of it.
      batch: placeholder op name -> shape of the batch that FLOPs and bytes are about.
    """
    builder = _Builder(training, rewritten, batch)
    total = sum(p.flops for p in builder.products)
    half = sum(p.flops for p in builder.products if p.name in builder.half)
    layers, blockers = builder.layers_and_blockers()
    casts = [n for n in builder.after.values() if n.op == "Cast"]
    pairs = [(n.attr["SrcT"].type, n.attr["DstT"].type) for n in casts]
    kept = activations.kept(builder.after, builder.shapes)
    half_ops = {op: n for op, n in rewritten.counts.half_ops.items() if op != "Cast"}
    return Report(
        tensorflow=backend.tensorflow().__version__ + (" (NVIDIA)" if backend.is_fork() else ""),
        gpu=rewritten.capability,
        lists=rewritten.lists_name,
        batch={name: list(shape) for name, shape in batch.items()},
        nodes=len(builder.after),
        half_nodes=sum(half_ops.values()),
        casts_to_half=pairs.count((FLOAT, HALF)),
        casts_to_float=pairs.count((HALF, FLOAT)),
        half_ops=dict(sorted(half_ops.items(), key=lambda item: -item[1])),
        matmul_flops=total,
        half_flops_share=half / total if total else 0.0,
        unmeasured=builder.unmeasured,
        kept_bytes=kept.forward,
        recomputed_bytes=kept.again,
        layers=layers,
        blockers=blockers,
        alignment=builder.alignment(total),
        constants=builder.misfits(),
    )
