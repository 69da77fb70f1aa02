"""A GPU that the driver shows and TensorFlow does not see: refused, and told what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import List, Mapping, NamedTuple, Tuple

from amp_xla import backend
from amp_xla.backend import nvidia
from amp_xla.errors import UnsupportedError

# TensorFlow names a library that it could not load only where it is asked to log that.
_PROBE = (
    "import tensorflow as tf; tf.config.experimental.list_physical_devices('GPU');"
    " tf.compat.v1.Session()"
)
_LOGGING = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
_MISSING = re.compile(r"Could not load dynamic library '([^']+)'")
_SAID = re.compile(r"(failed call to cuInit: .*|Cannot dlopen some GPU libraries|CUDA_ERROR_\w+.*)")
_OPTIONAL = "libnvinfer"  # TensorRT: nothing here uses it


class Blindness(NamedTuple):
    """Libraries that TensorFlow looked for in vain, and its last word on the GPU."""

    missing: Tuple[str, ...]
    said: str


def refuse_unseen_gpu(device: str, environ: Mapping[str, str]) -> None:
    """Nothing, or the reason why training would silently run on the CPU.

    Args:
      device: the setting: ``auto``, ``cpu`` (never an error) or ``gpu`` (one must be there).
      environ: this process' environment.

    Raises:
      UnsupportedError: the driver shows a GPU, TensorFlow sees none; or ``gpu``, and there is none.
    """
    if device == "cpu" or backend.gpus():
        return
    driver = nvidia.look(environ)
    if not driver.shown:
        if device == "gpu":
            found = driver.hidden or driver.describe()
            raise UnsupportedError(
                f"device=gpu, no GPU can be used ({found}); next: amp-xla doctor, or --device cpu"
            )
        return
    raise UnsupportedError(explain(driver, look_again(environ)))


def look_again(environ: Mapping[str, str]) -> Blindness:
    """Asks a fresh TensorFlow, which takes some seconds; it may die of what it finds."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**environ, **_LOGGING},
            timeout=300,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Blindness((), str(error))
    log = done.stderr.decode("utf-8", "replace")
    missing: List[str] = []
    for name in _MISSING.findall(log):
        if not name.startswith(_OPTIONAL) and name not in missing:
            missing.append(name)
    return Blindness(tuple(missing), next(iter(_SAID.findall(log)), ""))


def explain(driver: nvidia.Driver, blind: Blindness) -> str:
    """One line: what is there, what is missing, what installs it, what does without."""
    version = backend.tensorflow().__version__
    what = f"the driver shows {driver.describe()}, but TensorFlow {version} does not see it: "
    found, fix = reason(driver, blind, version, backend.is_fork())
    return f"{what}{found}; next: {fix}; or train on the CPU: --device cpu (AMP_XLA_DEVICE=cpu)"


def reason(driver: nvidia.Driver, blind: Blindness, tensorflow: str, fork: bool) -> Tuple[str, str]:
    """What is missing, and the command or advice that mends it."""
    old = nvidia.too_old(driver) if fork or not tensorflow.startswith("1.") else ""
    if old:
        return old, "a newer driver, or a container for this one, which `amp-xla doctor` names"
    cuda = [name for name in blind.missing if not name.startswith("libcuda.so")]
    if cuda:
        return f"{', '.join(cuda)} not found", _installs(tensorflow, fork)
    if driver.problem:
        fix = "restart the machine, or install the driver again"
        return f"nvidia-smi says: {driver.problem}", fix
    if blind.missing:
        fix = (
            "install the driver's libraries (Debian: libcuda1, Ubuntu: libnvidia-compute-...), in "
        )
        fix += "a container start it with its GPUs (docker --gpus all, apptainer --nv)"
        return f"{blind.missing[0]}, the driver's own library, not found", fix
    if any(gpu.mig for gpu in driver.gpus):
        fix = "nvidia-smi -L must show an instance, and CUDA_VISIBLE_DEVICES=MIG-... chooses it"
        return "it is in MIG mode", fix
    said = f" ({blind.said})" if blind.said else ""
    return f"its libraries are there, the driver refuses them{said}", "amp-xla doctor"


def _installs(tensorflow: str, fork: bool) -> str:
    if fork:
        return "make env RUNTIME=nvtf1 (installs them)"
    if tensorflow.startswith("1."):
        return (
            "this build is for CUDA 10: make train RUNTIME=tf2, RUNTIME=nvtf1 or make docker-train"
        )
    return "make env RUNTIME=tf2 (where the driver is; installs tensorflow[and-cuda])"
