"""What an inspection found: counts, FLOPs, layers, blockers, misfits; as values, JSON and text."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from amp_xla.diagnose.places import OUTSIDE

ROLES = ("matmul", "softmax", "mask", "norm", "other")
_NUMBERED = re.compile(r"^(.*?-)(\d+)(-.*)?$")
_WORTH_NAMING = 1e-3  # of all FLOPs
_REASONS = {
    "black": "on the list of ops that never run in half",
    "unlisted": "on no list, so it never runs in half",
    "refused": "listed, but this GPU has no half kernel for it",
}


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
    """See ``amp_xla.diagnose.inspect``; ``amp.json`` is its fields.

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
      kept_bytes: activations kept from the forward to the backward pass.
      recomputed_bytes: those that --recompute computes again, of the layer that has most.
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
    kept_bytes: int
    recomputed_bytes: int
    layers: Sequence[LayerReport]
    blockers: Sequence[BlockerReport]
    alignment: Sequence[AlignmentReport]
    constants: Sequence[ConstantReport]

    def __str__(self) -> str:
        return text(self)

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


def text(report: Report) -> str:
    """Everything a person wants to know first; ``amp.json`` has the rest."""
    parts = [_head(report), _layers(report), _blockers(report), _alignment(report)]
    return "\n\n".join(part for part in [*parts, _constants(report)] if part)


def _head(report: Report) -> str:
    half = report.half_flops_share * report.matmul_flops
    batch = ", ".join(f"{n} {list(s)}" for n, s in report.batch.items() if s)
    lines = [
        f"TensorFlow {report.tensorflow}, {report.lists} lists, a virtual GPU {report.gpu}; "
        f"{batch}",
        f"{report.half_nodes} of {report.nodes} nodes run in float16",
        f"{report.half_flops_share:.1%} of the matmul FLOPs run in float16 "
        f"({si(half)} of {si(report.matmul_flops)} FLOP a step)",
        f"{report.casts_to_half + report.casts_to_float} casts inserted: {report.casts_to_half} "
        f"to float16, {report.casts_to_float} back",
    ]
    kept = f"{si(report.kept_bytes)}B of activations are kept from the forward to the backward pass"
    if report.recomputed_bytes:
        kept += f"; up to {si(report.recomputed_bytes)}B, a layer's, are computed again"
    lines.append(kept)
    if report.unmeasured:
        lines.append(
            f"{len(report.unmeasured)} matrix products are left out of these shares, their sizes "
            f"being unknown before they run: {', '.join(report.unmeasured[:3])}"
        )
    return "\n".join(lines)


def _layers(report: Report) -> str:
    header = ("layer", "matmul", "backward", "softmax", "mask", "norm", "other", "stays", "by")
    groups: Dict[Any, List[Tuple[str, int, str]]] = {}
    order: List[Any] = []
    for layer in report.layers:
        cells = (
            str(layer.forward["matmul"]),
            str(layer.backward["matmul"]),
            *(str(layer.forward[role]) for role in ("softmax", "mask", "norm", "other")),
            si(layer.float32_bytes) + "B",
            layer.blocked_by or layer.backward_blocked_by,
        )
        found = _NUMBERED.match(layer.layer)
        name = (found.group(1), found.group(3) or "") if found else (layer.layer, None)
        if (name, cells) not in groups:
            order.append((name, cells))
        number = int(found.group(2)) if found else 0
        groups.setdefault((name, cells), []).append((layer.layer, number, ""))
    rows = [(_group_name(name, groups[name, cells]), *cells) for name, cells in order]
    note = (
        "half/total nodes: forward pass, matmuls also backward; `stays`: bytes of results kept in "
        "float32, both passes; `by`: the op that keeps most of them there"
    )
    return columns([header, *rows]) + "\n" + note


def _group_name(name: Tuple[str, Any], members: Sequence[Tuple[str, int, str]]) -> str:
    if len(members) == 1:
        return members[0][0]
    numbers = sorted(number for _, number, _ in members)
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    words = f"{numbers[0]}..{numbers[-1]}" if whole else ",".join(map(str, numbers))
    return f"{name[0]}{words}{name[1] or ''}"


def _blockers(report: Report) -> str:
    lines = ["What keeps the rest in float32:"]
    for phase in ("forward", "backward"):
        found = [b for b in report.blockers if b.phase == phase and b.float32_bytes]
        for blocker in found[:4]:
            layers = blocker.layers
            where = layers[0] if len(layers) == 1 else f"{len(layers)} layers"
            lines.append(
                f"  {phase:<8}  {blocker.op}: {blocker.nodes} nodes, {si(blocker.float32_bytes)}B, "
                f"{where}; {_REASONS[blocker.reason]}"
            )
            if blocker.source:
                lines.append(f"            {blocker.source}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _alignment(report: Report) -> str:
    if not report.alignment:
        return "All dimensions of all matrix products are multiples of 8."
    share = sum(a.flops_share for a in report.alignment)
    lines = [
        f"Dimensions that are not multiples of 8: {share:.2%} of the matmul FLOPs. Such a product "
        f"runs on slower kernels (no tensor cores at all before cuBLAS 11):"
    ]
    for entry in [a for a in report.alignment if a.flops_share >= _WORTH_NAMING][:6]:
        sizes = ", ".join(f"{d} -> {-(-d // 8) * 8}" for d in entry.unaligned)
        lines.append(
            f"  {entry.layer}: {entry.m} x {entry.k} x {entry.n} ({entry.count} times), "
            f"{entry.flops_share:.2%} of the FLOPs; {sizes} would add {entry.padding:.1%} work"
        )
    if len(lines) == 1:
        lines.append(f"  each less than {_WORTH_NAMING:.1%}; not worth a change")
    return "\n".join(lines)


def _constants(report: Report) -> str:
    lines = []
    merged: Dict[Any, List[str]] = {}
    for entry in report.constants:
        key = (entry.value, entry.becomes, entry.problem, entry.half, entry.source)
        merged.setdefault(key, []).append(entry.layer)
    for (value, becomes, problem, half, source), layers in merged.items():
        where = layers[0] if len(set(layers)) == 1 else f"{len(set(layers))} layers"
        where = "outside layers" if where == OUTSIDE else where
        path = "ROUNDED TO HALF" if half else "stays in float32"
        lines.append(f"  {value:g} {problem} (float16: {becomes:g}), {path}; {where}: {source}")
    if not lines:
        return "All constants fit float16."
    return "\n".join(["Constants that float16 cannot hold:", *lines])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, each column as wide as its widest cell; the first one to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def si(number: float) -> str:
    """1234567 -> ``1.23 M``."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}"
    return f"{number:.3g} "
