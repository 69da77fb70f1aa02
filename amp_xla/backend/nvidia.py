"""What NVIDIA's driver says of this machine: the one place that runs nvidia-smi.

Standard library only, and nothing of TensorFlow: scripts/environment asks it before anything is
installed. For tests, `AMP_XLA_DRIVER_ROOT=/folder` is looked into instead of `/` for
proc/driver/nvidia and dev/nvidia0, and whichever nvidia-smi is first on PATH answers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

ROOT_VARIABLE = "AMP_XLA_DRIVER_ROOT"
SECONDS = 60  # eight GPUs without persistence mode take half of that to answer
_TRACES = ("proc/driver/nvidia/version", "dev/nvidia0", "dev/dxg")  # the last one is WSL's
_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "memory.free",
    "compute_cap",
    "mig.mode.current",
)
_UNKNOWN_FIELDS = (
    0,
    1,
    2,
)  # left out from the end, because older drivers refuse what they don't know
_NONE = re.compile(r"\[.*\]|N/A|", re.IGNORECASE)
# By name, for drivers that do not tell. The first that fits counts.
_CAPABILITIES: Tuple[Tuple[str, Tuple[int, int]], ...] = (
    (r"\bG?B[123]00\b", (10, 0)),
    (r"RTX 50\d\d|RTX PRO \d000", (12, 0)),
    (r"\bG?H(20|100|200|800)\b", (9, 0)),
    (r"RTX 40\d\d|\bL(4|20|40)S?\b|\bAda\b", (8, 9)),
    (r"RTX 30\d\d|RTX A\d000|\bA(2|10|16|40)G?\b", (8, 6)),
    (r"\bA(30|100|800)\b", (8, 0)),
    (r"RTX 20\d\d|GTX 16\d\d|\bT4\b|TITAN RTX|Quadro RTX", (7, 5)),
    (r"V100|TITAN V\b|Quadro GV100", (7, 0)),
    (r"\bP(4|40)\b|GTX 10\d\d|TITAN X", (6, 1)),
    (r"P100", (6, 0)),
    (r"\bM(4|40|60)\b|GTX 9\d\d", (5, 2)),
    (r"\bK(40|80)\b", (3, 7)),
)

Version = Tuple[int, ...]
BLACKWELL: Version = (10, 0)  # the first compute capability that TensorFlow 2.17 has no kernels for
CUDA_12_DRIVER: Version = (525, 60)  # from NVIDIA's table of minor-version compatibility
_LITTLE = 8.0  # GiB; BERT-base with batch 32 x 128 in mixed precision takes about that


class Gpu(NamedTuple):
    """One GPU as nvidia-smi has it; memory in GiB; None where the driver does not tell."""

    name: str
    driver: str
    total: Optional[float] = None
    free: Optional[float] = None
    capability: Optional[Version] = None
    mig: bool = False

    @property
    def likely_capability(self) -> Optional[Version]:
        """What the driver says, else what a GPU of this name has, else None."""
        if self.capability is not None:
            return self.capability
        return next((c for name, c in _CAPABILITIES if re.search(name, self.name)), None)

    @property
    def busy(self) -> bool:
        """Others hold so much of its memory that BERT-base does not fit."""
        if self.free is None or self.total is None:
            return False
        return self.free < min(_LITTLE, 0.8 * self.total)

    def describe(self) -> str:
        """E.g. ``NVIDIA A100 (8.0, driver 535.104.05)``."""
        found = self.likely_capability
        known = "compute capability unknown" if found is None else ".".join(map(str, found))
        return f"{self.name} ({known}, driver {self.driver or 'unknown'})"


class Driver(NamedTuple):
    """What the machine shows.

    Attributes:
      gpus: those that nvidia-smi lists, all of them.
      trace: the first file of the driver's that is there, '' without one.
      problem: what nvidia-smi said instead of a list, '' where it answered or is not there.
      hidden: the setting that hides every GPU from this user's programs, '' if none does.
    """

    gpus: Tuple[Gpu, ...] = ()
    trace: str = ""
    problem: str = ""
    hidden: str = ""

    @property
    def shown(self) -> bool:
        """A GPU that a program of this user could use, if it has the libraries."""
        return bool(self.gpus or self.trace) and not self.hidden

    def describe(self) -> str:
        """One clause: the first GPU and how many there are, or the trace."""
        if self.gpus:
            more = f"{len(self.gpus)} x " if len(self.gpus) > 1 else ""
            return more + self.gpus[0].describe() + (" in MIG mode" if self.gpus[0].mig else "")
        said = f", nvidia-smi says: {self.problem}" if self.problem else ""
        return f"{self.trace or 'no driver'}{said}"


def look(environ: Mapping[str, str]) -> Driver:
    """Asks the kernel's files, then nvidia-smi, which takes a second or more where it is.

    Args:
      environ: for CUDA_VISIBLE_DEVICES and PATH.
    """
    root = Path(environ.get(ROOT_VARIABLE) or "/")
    trace = next((f"/{name}" for name in _TRACES if (root / name).exists()), "")
    gpus, problem = _list(environ)
    return Driver(tuple(gpus), trace, problem, hidden(environ))


def too_old(driver: Driver) -> str:
    """Why the driver cannot run CUDA 12, whose libraries both GPU runtimes bring; '' if it can."""
    told = [gpu.driver for gpu in driver.gpus if version(gpu.driver)]
    if not told or version(told[0])[:2] >= CUDA_12_DRIVER:
        return ""
    return (
        f"driver {told[0]} is older than {'.'.join(map(str, CUDA_12_DRIVER))}, which CUDA 12 needs"
    )


def hidden(environ: Mapping[str, str]) -> str:
    """The variable that hides every GPU, as the user wrote it; '' if none does."""
    name = "CUDA_VISIBLE_DEVICES"
    value = environ.get(name, "0").strip()
    return f"{name}={value or repr('')}" if value in ("", "-1") or value.startswith("-1,") else ""


def has_device(environ: Mapping[str, str]) -> bool:
    """True where an NVIDIA GPU is visible to this user's programs; asks the kernel only."""
    root = Path(environ.get(ROOT_VARIABLE) or "/") / "dev"
    return not hidden(environ) and any(
        (root / name).exists() for name in ("dxg", *(f"nvidia{i}" for i in range(32)))
    )


def instances(environ: Mapping[str, str]) -> List[str]:
    """The UUIDs of MIG instances, in nvidia-smi's order."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    code, out = run([program, "-L"]) if program else (1, "")
    return re.findall(r"UUID: (MIG-[^)\s]+)", out) if code == 0 else []


def _list(environ: Mapping[str, str]) -> Tuple[List[Gpu], str]:
    """The GPUs, or none and what nvidia-smi said."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return [], ""
    said = ""
    for fewer in _UNKNOWN_FIELDS:
        fields = _FIELDS[: len(_FIELDS) - fewer]
        code, out = run(
            [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        )
        lines = [line.strip() for line in out.splitlines() if line.strip()]
        said = lines[-1] if lines else f"exit code {code}"
        if code == 0:
            gpus = [_gpu(line) for line in lines]
            return [gpu for gpu in gpus if gpu is not None], "" if any(gpus) else said
        if "not a valid field" not in out:
            break
    return [], said


def _gpu(line: str) -> Optional[Gpu]:
    """One line of the list; None for a line that is none."""
    values = [value.strip() for value in line.split(",")]
    if len(values) < 4 or not re.match(r"\d+(\.\d+)+$|" + _NONE.pattern + "$", values[1]):
        return None
    told: Dict[str, str] = {
        field: value for field, value in zip(_FIELDS, values) if not _NONE.fullmatch(value)
    }
    return Gpu(
        told.get("name", "an NVIDIA GPU"),
        told.get("driver_version", ""),
        _gibibytes(told.get("memory.total", "")),
        _gibibytes(told.get("memory.free", "")),
        version(told.get("compute_cap", "")) or None,
        told.get("mig.mode.current", "").lower() == "enabled",
    )


def _gibibytes(text: str) -> Optional[float]:
    found = re.match(r"\d+(\.\d+)?", text)
    return float(found.group()) / 1024 if found else None


def version(text: str) -> Version:
    """``"470.82.01"`` -> (470, 82, 1); () for what is no version."""
    text = text.strip()
    return tuple(map(int, text.split("."))) if re.match(r"\d+(\.\d+)*$", text) else ()


def run(command: List[str]) -> Tuple[int, str]:
    """Exit code and all output; 127 and the reason where it cannot be started."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")
