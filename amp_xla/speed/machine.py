"""This machine, and the precisions and XLA modes that exist on it.

A separate process queries TensorFlow, because TensorFlow occupies memory of the GPU it looks at.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from typing import Dict, List, Tuple

from amp_xla import backend
from amp_xla.backend import nvidia
from amp_xla.errors import UnsupportedError
from amp_xla.process.checkout import ROOT
from amp_xla.settings import PRECISIONS, XLA_MODES

_PROBE = "import json, amp_xla.speed.machine as m; print(json.dumps(m.probe()))"

DEVICE = "AMP_XLA_DEVICE"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Hardware and software of this machine, as ``probe`` returns them."""

    device: str
    gpu: bool
    unseen: str  # why TensorFlow does not see the driver's GPU
    driver: str
    tensorflow: str
    bert4keras: str
    fork: bool
    tf32: bool
    half_dtype: str
    python: str
    cores: int
    memory_gib: float

    @property
    def absent(self) -> Dict[str, str]:
        """Precisions and XLA modes that this machine does not support, each with the reason."""
        out = {}
        if not self.tf32:
            out["tf32"] = "equals fp32 on a CPU, and on a GPU before the A100"
        if not self.half_dtype:
            out["amp"] = "TensorFlow has no half precision on this device"
        if self.tensorflow.startswith("1.") and not self.fork:
            out["lite"] = "TensorFlow 1.15 has it only in NVIDIA's build"
        return out

    def ladder(self) -> List[Tuple[str, str]]:
        """Return the pairs (precision, XLA mode) that this machine supports, XLA off first."""
        absent = self.absent
        return [
            (precision, xla)
            for xla in XLA_MODES
            for precision in PRECISIONS
            if precision not in absent and xla not in absent
        ]

    def describe(self) -> str:
        """Return a description of the machine in one line."""
        where = f"driver {self.driver}" if self.gpu else f"{self.cores} cores"
        return (
            f"{self.device}, {where}, {self.memory_gib:.0f} GiB; TensorFlow {self.tensorflow}, "
            f"bert4keras {self.bert4keras}, Python {self.python}"
        )


def look(seconds: float = 150.0) -> Machine:
    """Return the ``Machine``, queried in a new process that may take at most ``seconds``.

    Raises:
      UnsupportedError: TensorFlow cannot be imported, or not in this time.
    """
    command, env = [sys.executable, "-c", _PROBE], clean_environment()
    try:
        done = subprocess.run(command, capture_output=True, env=env, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"TensorFlow: not imported within {seconds:.0f} s") from None
    if done.returncode:
        # A signal, e.g. for an instruction that the processor lacks, leaves no text.
        text = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise UnsupportedError(f"TensorFlow: {text.splitlines()[-1].rpartition('Error: ')[2]}")
    return Machine(**json.loads(done.stdout.decode().splitlines()[-1]))


def clean_environment() -> Dict[str, str]:
    """Return this process' environment without precision and XLA switches."""
    dropped = ("AMP_XLA_", "TF_XLA", "TF_AUTO_MIXED", "TF_ENABLE_AUTO", "NVIDIA_TF32", "XLA_FLAGS")
    env = {k: v for k, v in os.environ.items() if k == DEVICE or not k.startswith(dropped)}
    if env.get(DEVICE) == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = "-1"
    env["AMP_XLA_CACHE"] = "off"  # compiling is measured
    paths = [str(ROOT), os.getcwd(), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return env


def probe() -> Dict[str, object]:
    """Return the fields of ``Machine`` for this process' TensorFlow and device."""
    from amp_xla.backend.configuring import refuse_unseen_gpu

    gpus, unseen = backend.gpus(), ""
    try:
        refuse_unseen_gpu(os.environ.get(DEVICE) or "auto")
    except UnsupportedError as error:
        unseen = str(error)
    name, driver = cpu_name(), ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if gpus:
        first = next(iter(nvidia.look().gpus), nvidia.Gpu("GPU", ""))
        name, driver, memory = f"{len(gpus)} x {first.name}", first.driver, first.total or memory
    return {
        "device": name,
        "gpu": bool(gpus),
        "unseen": unseen,
        "driver": driver,
        "tensorflow": backend.tensorflow().__version__,
        "bert4keras": ".".join(map(str, backend.bert4keras_version())),
        "fork": backend.is_fork(),
        "tf32": bool(gpus) and (backend.compute_capability() or (8, 0)) >= (8, 0),
        "half_dtype": backend.half_dtype()[0] or "",
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
    }


def cpu_name() -> str:
    """Return the processor's name, with its units for half precision."""
    name, flags = (backend.cpu().get(field, "") for field in ("model name", "flags"))
    half = " with AVX-512 BF16" if "avx512_bf16" in flags else ""
    return f"{name or platform.machine()}{' with AMX' if 'amx_bf16' in flags else half}"
