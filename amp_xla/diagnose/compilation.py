"""Shows the program that XLA compiles for a GPU from a training step; needs no GPU."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from amp_xla.diagnose.node_origins import OUTSIDE, NodeOrigins, Origin
from amp_xla.diagnose.report_text import JsonReport, columns, si
from amp_xla.graph import compiler, hlo, training_graph

SHARE = 0.65  # of the data sheet's bandwidth and FLOP/s: right for BERT-base on an H100
ATTENTION_SHARE = 0.3  # of the FLOP/s, for cuDNN's attention: assumed
LAUNCH = 2e-6  # seconds that a kernel takes at least
_FUSED = {"kLoop": "fused", "kInput": "fused with sums or transposes"}


@dataclasses.dataclass(frozen=True)
class KernelReport(compiler.Kernel):
    """A kernel with the layer and phase it comes from, and its seconds by the roofline model."""

    layer: str
    phase: str
    seconds: float

    @property
    def what(self) -> str:
        """Return the kernel's name in tables: a library's function, or the kind of XLA's fusion."""
        return self.kind if self.library else _FUSED.get(self.kind, f"not fused: {self.kind}")


@dataclasses.dataclass(frozen=True)
class CompiledReport(JsonReport):
    """The result of ``compiled``; ``compiled.json`` has its fields.

    In ``kernels``, each kernel comes after those whose results it reads.
    """

    gpu: str
    batch: Mapping[str, Sequence[int]]
    kernels: Sequence[KernelReport]

    def __str__(self) -> str:
        rows = _rows(self, lambda kernel: (kernel.what,))
        kinds = columns([("kernels", "number", "moved", "ms"), *rows])
        return "\n\n".join((_head(self), kinds, _dearest(self), _layouts(self)))


def compiled(model: Any, gpu: Any, batch: Optional[Sequence[Any]] = None) -> CompiledReport:
    """Compile a training step for a GPU that need not be there, and report its kernels.

    Args:
      model, batch: as for ``inspect``.
      gpu: one of ``amp_xla.speed.plan.gpus.GPUS``.

    Raises:
      PassFailedError, UnsupportedError: as for ``inspect``.
      UnsupportedError: XLA cannot compile the step, TensorFlow is not 2.17, or g++ is missing.
    """
    training = training_graph.view(model)
    feeds, origins = training.feed_shapes(batch), NodeOrigins(training)
    rows = []
    for kernel in compiler.kernels(hlo.of_step(training, feeds), gpu.described()):
        found = [origins.of(name) for name in kernel.operations.split()] or [Origin(OUTSIDE, "")]
        origin = next((o for o in found if o.layer != OUTSIDE), found[0])
        share = ATTENTION_SHARE if kernel.kind.startswith(compiler.ATTENTION) else SHARE
        peak = gpu.half if "f16" in kernel.result else gpu.tf32 or gpu.float32
        memory = kernel.moved / (SHARE * gpu.bandwidth * 1e9)
        seconds = max(memory, kernel.products / (share * peak * 1e12), LAUNCH)
        rows.append(KernelReport(**vars(kernel), **origin._asdict(), seconds=seconds))
    return CompiledReport(gpu.name, feeds, rows)


def _is_batch_fastest(result: str, batch: int, length: int) -> bool:
    """Return whether a result is stored as [length, size, batch], so the batch varies fastest.

    XLA transposes this result before a matrix product. For a result of attention, [batch * heads,
    length, head size], return False, even if head size and batch are the same number.
    """
    sizes, order = (re.findall(r"\d+", part) for part in result.split("[")[-1].split("]"))
    fastest, *others = [int(sizes[int(d)]) for d in order if sizes[int(d)] != "1"] or [0]
    return fastest == batch != length and len(others) == 2 and others[1] == length


def _head(report: CompiledReport) -> str:
    products = sum(k.products for k in report.kernels)
    half = sum(k.products for k in report.kernels if "f16" in k.result) / max(products, 1)
    model = sum(max(k.seconds, k.model / 1e6) for k in report.kernels)
    number, moved, ms = _figures(report.kernels)
    return (
        f"XLA of TensorFlow {compiler.SUPPORTED} for {report.gpu}; "
        f"{', '.join(f'{name} {list(s)}' for name, s in report.batch.items() if s)}\n"
        f"{number} kernels move {moved}; {half:.1%} of the FLOPs of their matrix products "
        f"({si(products)}FLOP) are in half precision\n"
        f"roofline: {ms} ms at {SHARE:.0%} of the data sheet's bandwidth and FLOP/s, "
        f"{model * 1e3:.2f} ms with XLA's model of its fusions\n"
        f"not counted: the update, another program; Adam moves about 28 bytes per parameter"
    )


def _figures(kernels: Sequence[KernelReport]) -> Tuple[str, str, str]:
    """Return as text the number of kernels, the bytes that they move, and their milliseconds."""
    seconds = sum(k.seconds for k in kernels)
    return str(len(kernels)), f"{si(sum(k.moved for k in kernels))}B", f"{seconds * 1e3:.2f}"


def _rows(report: CompiledReport, key: Callable[[KernelReport], Tuple[str, ...]]) -> List[Any]:
    """Return a row for each group of kernels with the same key: key and figures, slowest first."""
    groups: Dict[Any, List[KernelReport]] = {}
    for kernel in sorted(report.kernels, key=lambda k: -k.seconds):
        groups.setdefault(key(kernel), []).append(kernel)
    ordered = sorted(groups.items(), key=lambda group: -sum(k.seconds for k in group[1]))
    return [(*words, *_figures(kernels)) for words, kernels in ordered]


def _dearest(report: CompiledReport) -> str:
    def key(kernel: KernelReport) -> Tuple[str, ...]:
        name = kernel.kind if kernel.library else re.sub(r"[.\d]+$", "", kernel.name)
        # Kernels of layers that differ in their number only share a row.
        return re.sub(r"-\d+", "-*", kernel.layer), kernel.phase, name, kernel.result

    header = ("the ten slowest", "phase", "kernel", "result", "number", "moved", "ms")
    return columns([header, *_rows(report, key)[:10]])


def _layouts(report: CompiledReport) -> str:
    tokens = next((shape for shape in report.batch.values() if len(shape) == 2), [0, 0])
    transposing = [k for k in report.kernels if "transpose" in k.name]
    fastest = [k for k in report.kernels if _is_batch_fastest(k.result, *tokens)]
    groups = map(_figures, (transposing, fastest))
    first, second = (f"{n} kernels ({moved}, {ms} ms)" for n, moved, ms in groups)
    return (
        f"layouts: {first} transpose; {second} write a tensor [batch, length, size] with the batch "
        f"as its fastest dimension"
    )
