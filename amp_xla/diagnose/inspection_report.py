"""Report: the result of an inspection as values, JSON and text."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from amp_xla.diagnose.report_text import JsonReport, columns, si
from amp_xla.graph.virtual_gpu import CAPABILITY

_REASONS = {
    "black": "on the list of ops that never run in half",
    "unlisted": "on no list, so it never runs in half",
    "refused": "listed, but this GPU has no half kernel for it",
}


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """One Keras layer in the forward and backward pass (the update is never half).

    Attributes:
      matmul, softmax, other: nodes of this kind in the forward pass: ``5/6`` if 5 of 6 are half
        nodes, ``-`` if there are none.
      backward: the same for matrix products of the backward pass.
      float32_bytes: bytes of the results that stay in float32, both passes.
      blocked_by: the op that keeps most bytes in float32 in the forward pass or, if no op does so
        there, in the backward pass; empty if there is no such op.
    """

    layer: str
    matmul: str
    backward: str
    softmax: str
    other: str
    float32_bytes: int
    blocked_by: str


@dataclasses.dataclass(frozen=True)
class BlockerReport:
    """An op type that keeps nodes in float32, in the ``forward`` or ``backward`` phase.

    Attributes:
      reason: a key of ``_REASONS``.
      nodes: number of nodes that ops of this type keep in float32, the ops' own nodes included.
      float32_bytes, layers: bytes of the results of these nodes, and the nodes' layers.
      source: line of code that created an example of this op.
    """

    op: str
    reason: str
    phase: str
    nodes: int
    float32_bytes: int
    layers: Tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A constant with an element, ``value``, that rounding to half makes infinite or 0.

    ``problem`` is ``overflows`` (infinite) or ``vanishes`` (0). ``half`` is whether the constant is
    rounded to half before a node computes with it.
    """

    layer: str
    value: float
    problem: str
    half: bool
    source: str


@dataclasses.dataclass(frozen=True)
class Report(JsonReport):
    """The result of ``amp_xla.diagnose.inspect``; ``amp.json`` has its fields.

    Attributes:
      batch: placeholder -> shape.
      nodes: number of nodes of the rewritten training graph (pruned, constants folded).
      half_nodes: number of nodes that compute in half, without the ``casts`` to half and back.
      matmul_flops: FLOPs of all matrix products of one step.
      half_flops_share: share of these FLOPs in half precision, 0 to 1.
      unmeasured: names of matrix products of unknown size.
      layers: in the order of the model; ``blockers``: the largest first.
    """

    tensorflow: str
    batch: Mapping[str, Sequence[int]]
    nodes: int
    half_nodes: int
    casts: int
    matmul_flops: int
    half_flops_share: float
    unmeasured: Sequence[str]
    layers: Sequence[LayerReport]
    blockers: Sequence[BlockerReport]
    constants: Sequence[Misfit]

    def __str__(self) -> str:
        parts = [f(self) for f in (_head, _layers, _blockers, _constants)]
        return "\n\n".join(part for part in parts if part)


def _head(report: Report) -> str:
    half = report.half_flops_share * report.matmul_flops
    batch = ", ".join(f"{n} {list(s)}" for n, s in report.batch.items() if s)
    lines = [
        f"TensorFlow {report.tensorflow}, a virtual GPU (compute capability {CAPABILITY}); {batch}",
        f"{report.half_nodes} of {report.nodes} nodes run in float16",
        f"{report.half_flops_share:.1%} of the matmul FLOPs run in float16 "
        f"({si(half)} of {si(report.matmul_flops)} FLOP per step)",
        f"{report.casts} casts to float16 and back inserted",
    ]
    if report.unmeasured:
        lines.append(
            f"{len(report.unmeasured)} matrix products of unknown size are not counted: "
            f"{', '.join(report.unmeasured[:3])}"
        )
    return "\n".join(lines)


def _layers(report: Report) -> str:
    header = ("layer", "matmul", "backward", "softmax", "other", "stays", "by")
    # Layers that differ in their number only, with equal cells, share a row.
    groups: Dict[Any, List[str]] = {}
    for layer in report.layers:
        nodes = (layer.matmul, layer.backward, layer.softmax, layer.other)
        cells = (*nodes, si(layer.float32_bytes) + "B", layer.blocked_by)
        groups.setdefault((re.sub(r"-\d+", "-*", layer.layer), cells), []).append(layer.layer)
    rows = [
        (members[0] if len(members) == 1 else f"{name} ({len(members)})", *cells)
        for (name, cells), members in groups.items()
    ]
    note = (
        "5/6: 5 of 6 nodes run in float16; backward: matrix products of the backward pass;\n"
        "matmul, softmax, other: the forward pass; stays: bytes of the results that stay in\n"
        "float32, in both passes; by: the op that keeps most in float32 (forward, else backward)"
    )
    return columns([header, *rows]) + "\n" + note


def _blockers(report: Report) -> str:
    lines = ["What keeps the rest in float32:"]
    for phase in ("forward", "backward"):
        largest = [b for b in report.blockers if b.phase == phase and b.float32_bytes][:4]
        for blocker in largest:
            layers = blocker.layers
            where = layers[0] if len(layers) == 1 else f"{len(layers)} layers"
            lines.append(
                f"  {phase:<8}  {blocker.op}: {blocker.nodes} nodes, {si(blocker.float32_bytes)}B, "
                f"{where}; {_REASONS[blocker.reason]}"
            )
            if blocker.source:
                lines.append(f"            {blocker.source}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _constants(report: Report) -> str:
    if not report.constants:
        return "All constants fit float16."
    lines = ["Constants that float16 cannot hold:"]
    counts = Counter((c.value, c.problem, c.half, c.source or c.layer) for c in report.constants)
    for (value, problem, half, where), count in counts.items():
        path = "ROUNDED TO HALF" if half else "stays in float32"
        times = f", {count} times" if count > 1 else ""
        lines.append(f"  {value:g} {problem}, {path}{times}: {where}")
    return "\n".join(lines)
