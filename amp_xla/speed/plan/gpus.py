"""Data-sheet figures of GPUs (gpus.json), and their names on the command line."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from amp_xla.errors import SettingsError


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
      half, tf32, float32: dense TFLOP/s. ``half``: tensor cores with float32 accumulation, which on
        GeForce have half the advertised speed. ``tf32``: None before Ampere.
      bandwidth: GB/s of the memory; ``memory``: GiB; ``watts``: power limit.
      link: GB/s to another GPU in one direction.
      cores: multiprocessors; ``cache``: MiB of the second-level cache.
    """

    name: str
    half: float
    tf32: Optional[float]
    float32: float
    bandwidth: float
    memory: float
    watts: float
    link: float
    capability: str
    cores: int
    cache: float
    source: str

    def described(self) -> Dict[str, Any]:
        """Return the values that ``compiler.kernels`` needs to compile for this GPU."""
        units, threads, shared = _ARCHITECTURES[self.capability]
        major, minor = self.capability.split(".")
        return {
            "cores": self.cores, "units": units, "threads": threads, "shared": shared * 1024,
            "shared_per_block": (shared - (major > "7")) * 1024, "major": major, "minor": minor,
            "bandwidth": round(self.bandwidth * 10**9), "memory": round(self.memory * 2**30),
            "cache": round(self.cache * 2**20), "clock": self.float32 * 500 / self.cores / units,
        }  # fmt: skip


# Compute capability -> float32 units, threads and KiB of shared memory of a multiprocessor.
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_ARCHITECTURES = {
    "7.0": (64, 2048, 96), "7.5": (64, 1024, 64), "8.0": (64, 2048, 164), "8.6": (128, 1536, 100),
    "8.9": (128, 1536, 100), "9.0": (128, 2048, 228),
}  # fmt: skip

# The fields of ``Gpu``, a row per GPU.
_ROWS = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))
GPUS = {row[0]: Gpu(*row) for row in _ROWS}


def chosen(names: str) -> List[Gpu]:
    """Return the GPUs of a comma-separated list of names; ``all`` = all GPUs.

    Raises:
      SettingsError: a name is unknown.
    """
    if names == "all":
        return list(GPUS.values())
    gpus = [named(word, "--gpu", "all, ") for word in names.split(",")]
    return list({gpu.name: gpu for gpu in gpus}.values())


def named(word: str, flag: str, others: str = "") -> Gpu:
    """Return a GPU by its name.

    The error shows ``flag``, the unknown name and the allowed names: ``others`` and all GPUs.

    Raises:
      SettingsError: the name is unknown.
    """
    name = word.strip().lower()
    if name not in GPUS:
        starts = [known for known in GPUS if name and known.startswith(name)]
        close = starts or difflib.get_close_matches(name, GPUS, 1)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise SettingsError(f"{flag} {name}: no such GPU; {hint}allowed: {others}{', '.join(GPUS)}")
    return GPUS[name]
