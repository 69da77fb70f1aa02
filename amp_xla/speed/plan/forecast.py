"""Forecasts seconds and memory of a training step from its work and a GPU's data sheet.

The constants are fitted by ``benchmarks/plan_fit.py``; docs/plan.md explains each.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from amp_xla.speed.plan.gpus import Gpu

CONSTANTS = Path(__file__).parent / "constants.json"
MEMORY_SHARE = 0.8  # of a memory's bandwidth that kernels reach
NETWORK = 12.5  # GB/s between machines
FITS = 0.85  # maximum share of the memory for the verdict "fits"
# As ``fused`` in constants.json, for the bytes of a program that XLA has compiled: on an H100
# BERT-base is then 5% slower than measured, BERT-large 4% faster.
COMPILED = 1.18


class Product(NamedTuple):
    """Matrix products of one shape; ``elements``: numbers read and written."""

    flops: float
    elements: float
    half: bool


class Traffic(NamedTuple):
    """Bytes read and written: ``amp`` after the mixed-precision pass, ``full`` in float32."""

    amp: float
    full: float


class Work(NamedTuple):
    """The work of a micro-batch.

    Attributes:
      products: matrix products of the forward and backward pass.
      unfused: bytes that other operations read and write if each operation is a kernel.
      fused: these bytes if the elementwise operations between two products are one kernel.
      kept: bytes of activations kept from the forward to the backward pass, in float32.
      parameters: trained elements; ``variables``: trained tensors.
    """

    samples: int
    products: Sequence[Product]
    unfused: Traffic
    fused: Traffic
    kept: float
    parameters: float
    variables: int

    def compiled(self, moved: float) -> Work:
        """Return this work with the memory traffic of XLA's program, in place of an estimate.

        ``moved``: bytes that the program reads and writes outside matrix products, under amp.
        """
        factor = COMPILED / fitted()["time"]["fused"] * moved / max(self.fused.amp, 1.0)
        return self._replace(fused=Traffic(*(factor * x for x in self.fused)))

    def scaled(self, factor: float) -> Work:
        """Return the work of a batch that is ``factor`` times as large."""
        products = [Product(p.flops * factor, p.elements * factor, p.half) for p in self.products]
        unfused, fused = (Traffic(t.amp * factor, t.full * factor) for t in self[2:4])
        samples, kept = round(self.samples * factor), self.kept * factor
        return Work(samples, products, unfused, fused, kept, self.parameters, self.variables)


class Mode(NamedTuple):
    """Precision (``fp32``, ``tf32`` or ``amp``), XLA and GPUs of a step."""

    precision: str
    xla: bool
    gpus: int = 1
    accumulation: int = 1
    per_machine: int = 8
    recipe: bool = False  # its model's hand-written derivatives keep fewer activations

    def __str__(self) -> str:
        return f"{self.precision}, XLA {'on' if self.xla else 'off'}"


class Seconds(NamedTuple):
    """The time of a micro-batch, by part."""

    tensor_cores: float
    float32: float
    others: float
    optimizer: float
    all_reduce: float
    fixed: float


@functools.lru_cache(maxsize=None)
def fitted() -> Dict[str, Any]:
    """Return constants.json: ``time``, ``programs``, ``memory``, ``recipe_memory``, ``ranges``."""
    values: Dict[str, Any] = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    return values


def program(name: str, constants: Optional[Mapping[str, Any]] = None) -> Dict[str, float]:
    """Return the constants of one training program, e.g. tensorflow, and those shared by all."""
    constants = constants or fitted()
    return {**constants["time"], **constants["programs"][name]}


def seconds(work: Work, gpu: Gpu, mode: Mode, c: Mapping[str, float]) -> Seconds:
    """Return the seconds of a micro-batch on one GPU; ``c``: constants that ``program`` returns."""
    amp = mode.precision == "amp"
    bandwidth = MEMORY_SHARE * gpu.bandwidth * 1e9
    # A GPU with few watts for its peak runs at a lower clock under load.
    clock = min(max(gpu.watts / gpu.half / 2.4, 0.2), 1.45) ** c["clock_power"]
    cores = c["tensor_share"] * clock * 1e12 * (1 if gpu.tf32 else c["before_ampere"])
    wide = mode.precision != "fp32" and gpu.tf32
    parts = [0.0, 0.0]
    for product in work.products:
        half = amp and product.half
        if half or wide:
            rate = cores * (gpu.half if half else gpu.tf32 or 0)
        else:
            rate = c["float32_share"] * clock * 1e12 * gpu.float32
        needed = max(product.flops / rate, product.elements * (2 if half else 4) / bandwidth)
        parts[not (half or wide)] += needed
    traffic = work.fused if mode.xla else work.unfused
    others = c["fused" if mode.xla else "unfused"] * (traffic.amp if amp else traffic.full)
    if not mode.xla:  # TensorFlow's own kernels use a smaller share of a faster memory
        others *= (c["unfused_half"] if amp else 1) * (gpu.bandwidth / 900) ** c["unfused_power"]
    update = c["update_bytes"] * work.parameters / bandwidth + c["update"] * work.variables
    # Sum and casts of gradients between updates.
    between = 16 * work.parameters / bandwidth if mode.accumulation > 1 else 0.0
    gradients = 2 * work.parameters * (2 if amp and c["half_gradients"] else 4)
    inside, machines = min(mode.gpus, mode.per_machine), -(-mode.gpus // mode.per_machine)
    exchange = c["inside"] * (inside - 1) / inside / (gpu.link * 1e9)
    exchange += c["between"] * (machines - 1) / machines / (NETWORK * 1e9)
    fixed = c["fixed"] + (c["casts"] * work.variables if amp and not mode.xla else 0.0)
    update = c["updates"] * update / mode.accumulation + between
    all_reduce = gradients * exchange / mode.accumulation
    parts += [others / bandwidth, update, all_reduce, fixed]
    result = Seconds(*[c["scale"] * part for part in parts])
    # A GPU waits if its kernels are launched more slowly than it runs them.
    waiting = max(0.0, c["launch"] * work.variables - sum(result))
    return result._replace(fixed=result.fixed + waiting)


def memory(work: Work, mode: Mode, constants: Optional[Mapping[str, Any]] = None) -> float:
    """Return the bytes that a process needs on its GPU."""
    c = (constants or fitted())["recipe_memory" if mode.recipe else "memory"]
    amp = mode.precision == "amp"
    per_parameter = c["per_parameter"] + 2 * amp + 4 * (mode.accumulation > 1)
    share = c[("fused" if mode.xla else "unfused") + ("_half" if amp else "")]
    return float(c["fixed"] + per_parameter * work.parameters + share * work.kept)


def verdict(share: float) -> str:
    """Return ``fits``, ``close`` or ``does not fit``; ``share``: needed memory / GPU memory."""
    return "fits" if share < FITS else "close" if share <= 1 else "does not fit"


def largest_batch(work: Work, gpu: Gpu, mode: Mode) -> int:
    """Return the largest batch that fits; 0 if none does."""
    one = work.scaled(1 / work.samples)
    empty = memory(work.scaled(0), mode)
    room = FITS * gpu.memory * 2**30 - empty
    return max(0, int(room / max(memory(one, mode) - empty, 1.0) * (1 - 1e-9)))


def spread(gpu: Gpu) -> Tuple[float, float]:
    """Return (low, high): 80% of measured times are from low * forecast to high * forecast."""
    ranges = fitted()["ranges"]
    low, high = ranges.get(gpu.name, ranges["other"])
    return low, high
