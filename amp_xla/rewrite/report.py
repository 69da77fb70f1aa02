"""What mixed precision makes of a training graph: counts, FLOPs, layers, blockers, misfits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from amp_xla import backend
from amp_xla.rewrite import constants, shapes
from amp_xla.rewrite.blockers import Blame, computing, half_nodes
from amp_xla.rewrite.nodes import FLOAT, HALF, by_name
from amp_xla.rewrite.places import OUTSIDE, Places
from amp_xla.rewrite.training_graph import TrainingGraph
from amp_xla.rewrite.virtual_gpu import Rewritten

ROLES = ("matmul", "softmax", "mask", "norm", "other")
_NAMED = 5  # examples given of a list that may be long


@dataclasses.dataclass(frozen=True)
class Ratio:
    """``half`` of ``total`` nodes."""

    half: int = 0
    total: int = 0

    def __add__(self, other: Any) -> Ratio:
        return Ratio(self.half + other.half, self.total + other.total)

    def __str__(self) -> str:
        return f"{self.half}/{self.total}" if self.total else "-"


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """One Keras layer, forward and backward pass (the update is never half).

    Attributes:
      layer: its name.
      forward, backward: role (``matmul``, ``softmax``, ``mask``, ``norm``, ``other``) -> Ratio.
      float32_bytes: results that stay in float32, in bytes, for the batch that was asked about.
      blocked_by: the op that keeps most of the forward pass' bytes in float32; empty where there
        is none. backward_blocked_by: the same of the backward pass.
      source: the line of code that made ``blocked_by``.
    """

    layer: str
    forward: Mapping[str, Ratio]
    backward: Mapping[str, Ratio]
    float32_bytes: int
    blocked_by: str
    source: str
    backward_blocked_by: str


@dataclasses.dataclass(frozen=True)
class BlockerReport:
    """An op type that keeps others in float32, in the ``forward`` or ``backward`` phase.

    ``reason`` as in ``blockers.Blocker``; ``nodes`` counts those it keeps, itself included;
    ``float32_bytes`` are their results; ``layers`` where, ``example`` one such op's name.
    """

    op: str
    reason: str
    phase: str
    nodes: int
    float32_bytes: int
    layers: Tuple[str, ...]
    example: str
    source: str


@dataclasses.dataclass(frozen=True)
class AlignmentReport:
    """Matrix products of one size with a dimension that is not a multiple of 8.

    ``flops_share``: their share of all matmul FLOPs; ``padding``: extra work, as a fraction, that
    rounding those dimensions up would add, which is what a kernel that pads wastes.
    """

    layer: str
    m: int
    n: int
    k: int
    unaligned: Tuple[int, ...]
    count: int
    flops_share: float
    padding: float


@dataclasses.dataclass(frozen=True)
class ConstantReport:
    """A constant that half precision cannot hold; ``half``: it is rounded to half."""

    layer: str
    value: float
    becomes: float
    problem: str
    half: bool
    used_by: Tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class Report:
    """See ``amp_xla.rewrite.inspect``; ``amp.json`` is its fields.

    Attributes:
      tensorflow, gpu, lists: what it was made with.
      batch: placeholder -> shape.
      nodes: nodes of the rewritten training graph (pruned, constants folded).
      half_nodes: those that compute in half, casts not counted.
      casts_to_half, casts_to_float: casts the rewrite inserted.
      half_ops: op type -> number of half nodes.
      matmul_flops: FLOPs of all matrix products of one step.
      half_flops_share: the share of them in half precision, 0 to 1.
      unmeasured: matrix products whose size is not known before they run.
      layers, blockers, alignment, constants: see their classes; the largest first.
    """

    tensorflow: str
    gpu: str
    lists: str
    batch: Mapping[str, Sequence[int]]
    nodes: int
    half_nodes: int
    casts_to_half: int
    casts_to_float: int
    half_ops: Mapping[str, int]
    matmul_flops: int
    half_flops_share: float
    unmeasured: Sequence[str]
    layers: Sequence[LayerReport]
    blockers: Sequence[BlockerReport]
    alignment: Sequence[AlignmentReport]
    constants: Sequence[ConstantReport]

    def __str__(self) -> str:
        from amp_xla.rewrite import table  # which reads the classes above

        return table.text(self)

    def to_json(self) -> Dict[str, Any]:
        """The content of amp.json; non-finite numbers as text, which JSON has no other way for."""
        return jsonable(dataclasses.asdict(self))


def jsonable(value: Any) -> Any:
    """``value`` with non-finite numbers as text, keys as text, tuples as lists."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


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


def build(
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
        layers=layers,
        blockers=blockers,
        alignment=builder.alignment(total),
        constants=builder.misfits(),
    )
