"""NVIDIA's driver on this machine: the one place that runs nvidia-smi.

Uses the standard library only, since ``scripts/environment`` runs it before anything is installed.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

ROOT = Path("/")
SECONDS = 60  # nvidia-smi takes 30 with eight GPUs without persistence mode
_TRACES = ("proc/driver/nvidia/version", "dev/nvidia0", "dev/dxg")  # dxg: Windows' WSL
_FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
_UNKNOWN = re.compile(r"\[.*\]|N/A|", re.IGNORECASE)

Version = Tuple[int, ...]
BLACKWELL: Version = (10, 0)  # the first compute capability without kernels in TensorFlow 2.17
CUDA_12_DRIVER: Version = (525, 60)  # from NVIDIA's table of minor-version compatibility


class Gpu(NamedTuple):
    """A GPU as nvidia-smi lists it; memory in GiB; None if the driver does not report a value."""

    name: str
    driver: str
    total: Optional[float] = None
    capability: Optional[Version] = None

    def describe(self) -> str:
        """Return e.g. ``NVIDIA A100 (8.0, driver 535.104.05)``."""
        known = ".".join(map(str, self.capability or ())) or "compute capability unknown"
        return f"{self.name} ({known}, driver {self.driver or 'unknown'})"


class Driver(NamedTuple):
    """The driver, and the GPUs that nvidia-smi lists; texts are empty if they do not apply.

    ``trace`` is the path of a file that only a driver creates, ``problem`` nvidia-smi's error,
    ``hidden`` the setting that hides every GPU from programs.
    """

    gpus: Tuple[Gpu, ...] = ()
    trace: str = ""
    problem: str = ""
    hidden: str = ""

    @property
    def shown(self) -> bool:
        """True if this user's programs may use a GPU; they also need CUDA's libraries."""
        return bool(self.gpus or self.trace) and not self.hidden

    def describe(self) -> str:
        """Return e.g. ``2 x A100 (8.0, driver 535.1)``; without GPUs, ``trace`` and ``problem``."""
        if self.gpus:
            return f"{len(self.gpus)} x {self.gpus[0].describe()}"
        problem = f", nvidia-smi reports: {self.problem}" if self.problem else ""
        return f"{self.trace or 'no driver'}{problem}"


def look() -> Driver:
    """Look for the driver's files, and run nvidia-smi, which takes a second or more."""
    trace = next((f"/{name}" for name in _TRACES if (ROOT / name).exists()), "")
    gpus, problem = _list()
    return Driver(tuple(gpus), trace, problem, hidden(os.environ))


def too_old(driver: Driver) -> str:
    """Return why the driver cannot run CUDA 12, or ''; both GPU runtimes need CUDA 12."""
    versions = [gpu.driver for gpu in driver.gpus if version(gpu.driver)]
    if not versions or version(versions[0])[:2] >= CUDA_12_DRIVER:
        return ""
    needed = ".".join(map(str, CUDA_12_DRIVER))
    return f"driver {versions[0]} is older than {needed}, which CUDA 12 needs"


def hidden(environ: Mapping[str, str]) -> str:
    """Return the setting that hides every GPU, or ''."""
    name = "CUDA_VISIBLE_DEVICES"
    value = environ.get(name, "0").strip()
    # CUDA ignores the list from its first entry that is no GPU on, such as Slurm's NoDevFiles.
    return "" if re.match(r"\d|GPU-|MIG-", value) else f"{name}={value or repr('')}"


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Sequence[Gpu]:
    """Return those of ``gpus`` that CUDA shows; none if CUDA_VISIBLE_DEVICES has UUIDs."""
    names = environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return gpus
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":  # CUDA counts from the fastest GPU
        gpus = sorted(gpus, key=lambda gpu: gpu.capability or (), reverse=True)
    words = [name.strip() for name in names.split(",")]
    numbers = list(itertools.takewhile(str.isdecimal, words))  # CUDA stops at anything else
    return [gpu for number, gpu in enumerate(gpus) if str(number) in numbers]


def has_device(environ: Mapping[str, str]) -> bool:
    """Return True if the kernel shows an NVIDIA GPU that is not hidden."""
    folder = ROOT / "dev"
    return not hidden(environ) and any([*folder.glob("nvidia[0-9]*"), *folder.glob("dxg")])


def _list() -> Tuple[List[Gpu], str]:
    """Return the GPUs, and nvidia-smi's error message if there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    message = ""
    for fields in (_FIELDS, _FIELDS[:-1]):  # older drivers have no compute_cap
        query = f"--query-gpu={','.join(fields)}"
        code, out = run([program, query, "--format=csv,noheader,nounits"])
        lines = [line.strip() for line in out.splitlines() if line.strip()]
        message = lines[-1] if lines else f"exit code {code}"
        if code == 0:
            gpus = [gpu for gpu in map(_gpu, lines) if gpu is not None]
            return gpus, "" if gpus else message
        if "not a valid field" not in out:
            break
    return [], message


def _gpu(line: str) -> Optional[Gpu]:
    """Parse one line of nvidia-smi's list; None if it is not a GPU."""
    values = ["" if _UNKNOWN.fullmatch(text) else text for text in map(str.strip, line.split(","))]
    if len(values) < 3 or (values[1] and not version(values[1])):
        return None
    name, driver, memory, capability = (*values, "")[:4]
    mebibytes = re.match(r"\d+(\.\d+)?", memory)
    total = float(mebibytes.group()) / 1024 if mebibytes else None
    return Gpu(name or "an NVIDIA GPU", driver, total, version(capability) or None)


def version(text: str) -> Version:
    """Return ``"470.82.01"`` as (470, 82, 1); () if it is not a version."""
    text = text.strip()
    return tuple(map(int, text.split("."))) if re.match(r"\d+(\.\d+)*$", text) else ()


def run(command: List[str], env: Optional[Mapping[str, str]] = None) -> Tuple[int, str]:
    """Run a command; return exit code and output; or 127 and why it did not start or timed out."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=env, timeout=SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")
