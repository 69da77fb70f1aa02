"""What ``benchmarks.gpu`` compares: shapes, contestants, their order, and the record of a row."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from amp_xla.errors import AmpXlaError
from amp_xla.models.options import training_flops
from amp_xla.speed.measure import Request
from amp_xla.speed.plan.gpus import GPUS, Gpu
from benchmarks import named
from benchmarks.masked_lm import MASKED_SHARE, our_config

BASE, LARGE, TINY = "BERT-base at 384", "BERT-large at 384", "tiny at 16"
PADDED, PACKED = "texts, padded", "texts, packed"
_BASE = {"layers": 12, "hidden": 768, "vocab_size": 30528, "max_length": 384, "dropout": 0.1,
         "learning_rate": 1e-4, "seed": 1}  # fmt: skip
_TINY = {"layers": 2, "hidden": 64, "vocab_size": 256, "max_length": 16, "count_flops": True}
SHAPES: Dict[str, Dict[str, Any]] = {
    BASE: _BASE, LARGE: {**_BASE, "layers": 24, "hidden": 1024}, TINY: {**_BASE, **_TINY},
}  # fmt: skip
# --batch-size of packed rows counts texts, about 9 per row.
BATCH = {TINY: 4, BASE: 64, LARGE: 32, PADDED: 64, PACKED: 512}
WINDOWS = 3  # of timed steps; their rates give the spread
# Name of a GPU in published tables and, as words, in nvidia-smi -> its data sheet
NAMES = {
    "V100 16GB": "v100-16g", "V100 32GB": "v100-32g", "A100 40GB": "a100-40g",
    "A100 80GB": "a100-80g", "H100": "h100", "H200": "h200", "RTX 3090": "rtx3090",
    "RTX 4090": "rtx4090", "A10": "a10", "A30": "a30", "RTX A6000": "a6000", "T4": "t4",
    "Quadro RTX 8000": "rtx8000", "L4": "l4", "L40S": "l40s", "RTX 3080": "rtx3080",
    "RTX 2080 Ti": "rtx2080ti", "H100 PCIe": "h100-pcie",
}  # fmt: skip


class Contestant(NamedTuple):
    """One way to train: ``side`` of ``benchmarks.masked_lm``, and what it adds to the shape."""

    precision: str
    xla: str = "off"
    side: str = "ours"
    shape: Mapping[str, Any] = {}

    @property
    def environ(self) -> Dict[str, str]:
        """Variables of its process; JAX would take 75% of the memory before it needs it."""
        exact = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"} if self.precision == "fp32" else {}
        memory = {"PREALLOCATE": "false", "MEM_FRACTION": "0.95"}
        client = {f"XLA_PYTHON_CLIENT_{name}": value for name, value in memory.items()}
        return {**client, **exact} if self.side == "jax" else {}

    @property
    def seconds(self) -> float:
        """Seconds that must be left to begin a row."""
        compiles = self.xla != "off" or self.side == "jax" or "compile" in self.shape
        return 60.0 if compiles else 30.0


_TORCH, _JAX = "hugging_face", "jax"
CONTESTANTS: Dict[str, Contestant] = {
    "amp": Contestant("amp"),
    "tf32": Contestant("tf32"),
    "fp32": Contestant("fp32"),
    "amp + xla on": Contestant("amp", "on"),
    "amp + xla lite": Contestant("amp", "lite"),
    "amp + xla no_lazy": Contestant("amp", "no_lazy"),
    "tf32 + xla on": Contestant("tf32", "on"),
    "PyTorch bf16": Contestant("bf16", "off", _TORCH),
    "PyTorch bf16 compiled": Contestant("bf16", "off", _TORCH, {"compile": True}),
    "PyTorch bf16, all positions": Contestant("bf16", "off", _TORCH, {"all_positions": True}),
    "PyTorch fp32": Contestant("fp32", "off", _TORCH),
    "JAX bf16": Contestant("bf16", "off", _JAX),
    "JAX bf16, cuDNN attention": Contestant("bf16", "off", _JAX, {"attention_dropout": 0.0}),
    "JAX fp32": Contestant("fp32", "off", _JAX),
}
# The most valuable rows first
PLAN = [
    (BASE, "amp + xla on"), (BASE, "amp"), (BASE, "tf32"), (BASE, "PyTorch bf16"),
    (BASE, "JAX bf16"), (BASE, "JAX bf16, cuDNN attention"), (BASE, "PyTorch bf16 compiled"),
    (LARGE, "amp"), (LARGE, "PyTorch bf16"), (PADDED, "amp + xla on"), (PACKED, "amp + xla on"),
    (LARGE, "amp + xla on"), (LARGE, "JAX bf16"), (LARGE, "JAX bf16, cuDNN attention"),
    (BASE, "PyTorch bf16, all positions"), (BASE, "tf32 + xla on"), (LARGE, "tf32"),
    (BASE, "fp32"), (BASE, "JAX fp32"), (BASE, "PyTorch fp32"), (LARGE, "PyTorch bf16 compiled"),
    (PADDED, "tf32"), (PACKED, "tf32"), (BASE, "amp + xla lite"), (BASE, "amp + xla no_lazy"),
    (LARGE, "tf32 + xla on"),
]  # fmt: skip


@dataclasses.dataclass
class Row:
    """The measurement of a contestant on a shape; ``machine`` has card, driver and versions.

    Attributes:
      windows: sequences per second of each window.
      seconds: of each timed step; a batch takes ``making_seconds`` more.
      flops: of the matrix products of a step, counted in its program; 0 = not counted.
      fused: calls of cuDNN's attention in JAX's program.
    """

    shape: str
    contestant: str
    machine: Dict[str, str]
    date: str
    revision: str
    batch: int = 0
    status: str = "not measured"
    windows: List[float] = dataclasses.field(default_factory=list)
    seconds: List[float] = dataclasses.field(default_factory=list)
    making_seconds: float = 0.0
    first_loss: Optional[float] = None
    loss: Optional[float] = None
    device: str = ""
    half_nodes: int = 0
    clusters: int = 0
    skipped: int = 0
    fused: int = 0
    flops: int = 0
    peak_bytes: int = 0
    warm_seconds: float = 0.0

    @property
    def key(self) -> Tuple[str, str, str]:
        """Values that no two rows of a record share."""
        return self.shape, self.contestant, self.machine["card"]

    @property
    def sizes(self) -> Dict[str, Any]:
        """The shape of the model for this contestant; empty for texts."""
        sizes, contestant = SHAPES.get(self.shape, {}), self.contestant
        # A trial compares the first losses of float32's rows, which are equal without dropout.
        exact = {"dropout": 0.0} if TINY in self.shape and "fp32" in contestant else {}
        return {**sizes, **CONTESTANTS[contestant].shape, **exact} if sizes else {}

    @property
    def expected_flops(self) -> float:
        """FLOPs of the matrix products that a step needs; 0 for texts."""
        if not self.sizes:
            return 0.0
        length = self.sizes["max_length"]
        masked = length if self.sizes.get("all_positions") else round(MASKED_SHARE * length)
        return self.batch * training_flops(our_config(self.sizes), length, masked)

    def problem(self, trial: bool, others: Iterable[Row]) -> str:
        """Return why the row is not what its name says, or ''."""
        contestant, (flops, first) = CONTESTANTS[self.contestant], (self.flops, self.first_loss)
        half = contestant.precision in ("amp", "bf16")
        problems = {
            "loss not finite": self.loss is None or first is None,
            "ran in float32: nothing was computed in half precision": half and not self.half_nodes,
            f"{self.half_nodes} nodes ran in half precision": self.half_nodes and not half,
            "XLA compiled nothing": contestant.xla != "off" and not self.clusters,
            f"{self.skipped} steps were skipped: gradients were not finite": self.skipped,
            "ran on the CPU": self.device == "cpu" and not trial,
            "its program has no cuDNN attention":
                "cuDNN" in self.contestant and not trial and not self.fused,
            f"its program has {flops} FLOPs instead of {self.expected_flops:.0f}":
                flops and flops != self.expected_flops,
            **{
                f"its first loss is {first}, that of {other.contestant} {other.first_loss}":
                    abs((other.first_loss or 0.0) - (first or 0.0)) > 1e-3
                for other in others
                if trial and "fp32" in self.contestant and other.status == "ok"
                and other.sizes == self.sizes
            },
        }  # fmt: skip
        return next((text for text, true in problems.items() if true), "")

    def command(self, config: Any) -> List[str]:
        """Return the command line of the row's process."""
        task = json.dumps({"steps": config.steps, "windows": WINDOWS})
        contestant, size = CONTESTANTS[self.contestant], SHAPES[TINY if config.trial else BASE]
        if not self.sizes:
            names = ("layers", "hidden", "max_length")
            words = [w for n in names for w in ("--" + n.replace("_", "-"), str(size[n]))]
            words += ["--batch-size", str(self.batch)] + ["--packed"] * (PACKED in self.shape)
            request = Request("classification", words, contestant.precision, contestant.xla)
            text = json.dumps(dataclasses.asdict(request))
            return [sys.executable, "-m", "benchmarks.recipe_side", text, task]
        modes = {"precision": contestant.precision, "xla": contestant.xla, "batch_size": self.batch}
        shape = json.dumps({**self.sizes, **modes})
        words = ["-m", "benchmarks.masked_lm", contestant.side, shape, task]
        return [*config.python(contestant.side), *words]


def gpu_named(device: str) -> Optional[Gpu]:
    """Return the data sheet of a device as the driver names it, e.g. ``NVIDIA H100 80GB HBM3``."""
    words = set(re.split(r"[\s-]+", device.upper()))
    if {"H100", "PCIE"} <= words:
        return GPUS["h100-pcie"]
    if "NVL" in words or {"V100", "PCIE"} <= words:  # slower than those of the data sheets
        return None
    variants = words & {"TI", "SUPER", "LAPTOP", "D"}  # other cards
    names = [(set(name.upper().split()), gpu) for name, gpu in NAMES.items()]
    matching = [gpu for name, gpu in names if name <= words and variants <= name]
    return GPUS[matching[0]] if matching else None


def planned(config: Any) -> List[Tuple[str, str]]:
    """Return (shape, contestant) of the rows to measure, the most valuable first.

    Raises:
      AmpXlaError: ``--only`` names none.
    """
    tiny = {BASE: TINY} if config.trial else {}
    pairs = [(tiny.get(s, s), name) for s, name in PLAN if not (tiny and s == LARGE)]
    chosen = [pair for pair in pairs if named(", ".join(pair), config.only)]
    if not chosen:
        names = "; ".join(", ".join(pair) for pair in pairs)
        raise AmpXlaError(f"--only {config.only}: no such row; allowed: parts of {names}")
    return chosen
