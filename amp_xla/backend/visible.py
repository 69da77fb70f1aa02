"""A GPU that the driver shows and TensorFlow does not see: an error that names what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import List, Mapping, NamedTuple, Tuple

from amp_xla import backend
from amp_xla.backend import nvidia
from amp_xla.errors import UnsupportedError

# TensorFlow logs the name of a library that it could not load only with these variables.
_PROBE = (
    "import tensorflow as tf; tf.config.experimental.list_physical_devices('GPU');"
    " tf.compat.v1.Session()"
)
_LOGGING = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
_MISSING = re.compile(r"Could not load dynamic library '([^']+)'")
_ERRORS = re.compile(
    r"(failed call to cuInit: .*|Cannot dlopen some GPU libraries|CUDA_ERROR_\w+.*)"
)
_OPTIONAL = "libnvinfer"  # TensorRT, which nothing here uses


class Blindness(NamedTuple):
    """Libraries that TensorFlow did not find, and its error message about the GPU."""

    missing: Tuple[str, ...]
    message: str


def refuse_unseen_gpu(device: str, environ: Mapping[str, str]) -> None:
    """Raise an error if training would silently run on the CPU.

    Args:
      device: ``auto``, ``cpu`` (never an error) or ``gpu`` (an error without a GPU).
      environ: environment of this process.

    Raises:
      UnsupportedError: the driver shows a GPU and TensorFlow sees none; or ``gpu`` without one.
    """
    if device == "cpu" or backend.gpus():
        return
    driver = nvidia.look(environ)
    if driver.shown:
        raise UnsupportedError(explain(driver, look_again(environ)))
    if device == "gpu":
        raise UnsupportedError(
            f"device=gpu, but no GPU can be used ({driver.hidden or driver.describe()}); next: "
            f"amp-xla doctor, or --device cpu"
        )


def look_again(environ: Mapping[str, str]) -> Blindness:
    """Read the log of a fresh TensorFlow, which takes some seconds."""
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
    return Blindness(tuple(missing), next(iter(_ERRORS.findall(log)), ""))


def explain(driver: nvidia.Driver, blind: Blindness) -> str:
    """Return one line: the GPU, what is missing, what installs it, and how to train without it."""
    version = backend.tensorflow().__version__
    what = f"the driver shows {driver.describe()}, but TensorFlow {version} does not see it: "
    why, fix = reason(driver, blind, version, backend.is_fork())
    return f"{what}{why}; next: {fix}; or train on the CPU: --device cpu (AMP_XLA_DEVICE=cpu)"


def reason(driver: nvidia.Driver, blind: Blindness, tensorflow: str, fork: bool) -> Tuple[str, str]:
    """Return what is missing, and the command or advice that fixes it."""
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
        fix = "install the driver's libraries (Debian: libcuda1, Ubuntu: libnvidia-compute-...); "
        fix += "start a container with its GPUs (docker --gpus all, apptainer --nv)"
        return f"{blind.missing[0]}, the driver's own library, not found", fix
    message = f" ({blind.message})" if blind.message else ""
    return f"its libraries are there, the driver refuses them{message}", "amp-xla doctor"


def _installs(tensorflow: str, fork: bool) -> str:
    if fork:
        return "make env RUNTIME=nvtf1"
    if tensorflow.startswith("1."):
        return (
            "this build is for CUDA 10: make train RUNTIME=tf2, RUNTIME=nvtf1 or make docker-train"
        )
    return "make env RUNTIME=tf2, on the machine with the driver (it installs CUDA's libraries)"
