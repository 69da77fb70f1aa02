"""Data-sheet figures of GPUs, and their names on the command line."""

from __future__ import annotations

import difflib
from typing import Any, Dict, List, NamedTuple, Optional

from amp_xla.errors import SettingsError


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
      half, tf32, float32: dense TFLOP/s; ``half`` is the tensor cores' with float32 accumulation,
        which on GeForce is half the advertised figure. No ``tf32`` before Ampere.
      bandwidth: GB/s of the memory; ``memory``: GiB; ``watts``: power limit.
      link: GB/s to another GPU in one direction.
      capability: compute capability.
      cores: multiprocessors; ``cache``: MiB of the second-level cache.
      source: where the figures are.
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
        """Return what XLA's compiler needs to compile for this GPU."""
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

_SITE = "https://www.nvidia.com/"
_IMAGES = "https://images.nvidia.com/"
_V100 = _IMAGES + "content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_A100 = _SITE + "content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet.pdf"
_GA102 = _SITE + "content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
_TURING = (
    _IMAGES + "aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/"
    "NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_ADA = _IMAGES + "aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_DATA = _SITE + "en-us/data-center/"

GPUS = {gpu.name: gpu for gpu in (
    Gpu("v100-16g", 125, None, 15.7, 900, 16, 300, 150, "7.0", 80, 6, _V100),
    Gpu("v100-32g", 125, None, 15.7, 900, 32, 300, 150, "7.0", 80, 6, _V100),
    Gpu("t4", 65, None, 8.1, 320, 16, 70, 16, "7.5", 40, 4, _DATA + "tesla-t4/"),
    Gpu("rtx2080ti", 53.8, None, 13.4, 616, 11, 250, 16, "7.5", 68, 5.5, _TURING),
    Gpu("rtx8000", 130.5, None, 16.3, 672, 48, 260, 16, "7.5", 72, 6, _TURING),
    Gpu("a100-40g", 312, 156, 19.5, 1555, 40, 400, 300, "8.0", 108, 40, _A100),
    Gpu("a100-80g", 312, 156, 19.5, 2039, 80, 400, 300, "8.0", 108, 40, _A100),
    Gpu("a30", 165, 82, 10.3, 933, 24, 165, 100, "8.0", 56, 24, _DATA + "products/a30-gpu/"),
    Gpu("a10", 125, 62.5, 31.2, 600, 24, 150, 32, "8.6", 72, 6, _DATA + "products/a10-gpu/"),
    Gpu("rtx3080", 59.5, 29.8, 29.8, 760, 10, 320, 32, "8.6", 68, 5, _GA102),
    Gpu("rtx3090", 71, 35.6, 35.6, 936, 24, 350, 32, "8.6", 82, 6, _GA102),
    Gpu("a6000", 154.8, 77.4, 38.7, 768, 48, 300, 32, "8.6", 84, 6, _GA102),
    Gpu("rtx4090", 165.2, 82.6, 82.6, 1008, 24, 450, 32, "8.9", 128, 72, _ADA),
    Gpu("l4", 121, 60, 30.3, 300, 24, 72, 32, "8.9", 58, 48, _DATA + "l4/"),
    Gpu("l40s", 362, 183, 91.6, 864, 48, 350, 32, "8.9", 142, 96, _DATA + "l40s/"),
    Gpu("h100", 989, 494.5, 67, 3350, 80, 700, 450, "9.0", 132, 50, _DATA + "h100/"),
    Gpu("h100-pcie", 756, 378, 51, 2000, 80, 350, 64, "9.0", 114, 50, _DATA + "h100/"),
    Gpu("h200", 989, 494.5, 67, 4800, 141, 700, 450, "9.0", 132, 50, _DATA + "h200/"),
)}  # fmt: skip


def chosen(names: str) -> List[Gpu]:
    """Return the GPUs of a list separated by commas, or all for ``all``.

    Raises:
      SettingsError: a name is unknown.
    """
    if names == "all":
        return list(GPUS.values())
    gpus = [named(word, "--gpu", "all, ") for word in names.split(",")]
    return list({gpu.name: gpu for gpu in gpus}.values())


def named(word: str, flag: str, others: str = "") -> Gpu:
    """Return a GPU by its name; ``flag`` and ``others``, more values of it, are for the error.

    Raises:
      SettingsError: the name is unknown.
    """
    name = word.strip().lower()
    if name not in GPUS:
        starts = [known for known in GPUS if name and known.startswith(name)]
        close = starts or difflib.get_close_matches(name, GPUS, 1)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        allowed = f"{others}{', '.join(GPUS)}"
        raise SettingsError(f"{flag} {name}: no such GPU; {hint}allowed: {allowed}")
    return GPUS[name]
