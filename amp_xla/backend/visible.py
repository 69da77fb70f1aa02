"""Raises an error that names what is missing if TensorFlow does not see the driver's GPU."""

from __future__ import annotations

import re
import sys
from typing import List, Mapping

from amp_xla import backend
from amp_xla.backend import nvidia
from amp_xla.errors import UnsupportedError

# TensorFlow logs the name of a library that it could not load only if these are set.
_PROBE = (
    "import tensorflow as tf; tf.config.experimental.list_physical_devices('GPU');"
    " tf.compat.v1.Session()"
)
_LOGGING = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
_MISSING = re.compile(r"Could not load dynamic library '((?!libnvinfer)[^']+)'")  # not TensorRT


def refuse_unseen_gpu(device: str, environ: Mapping[str, str]) -> None:
    """Raise an error if training would silently run on the CPU.

    Args:
      device: ``auto``, ``cpu`` (never an error) or ``gpu`` (an error without a GPU).
      environ: environment of this process.

    Raises:
      UnsupportedError: the driver shows a GPU that TensorFlow does not see, or ``device`` is
        ``gpu`` and there is no GPU.
    """
    if device == "cpu" or backend.gpus():
        return
    driver = nvidia.look(environ)
    if driver.shown:
        raise UnsupportedError(
            f"the driver shows {driver.describe()}, but TensorFlow "
            f"{backend.tensorflow().__version__} does not see it: {_reason(driver, environ)}; or "
            f"train on the CPU: AMP_XLA_DEVICE=cpu"
        )
    if device == "gpu":
        raise UnsupportedError(
            f"device=gpu, but no GPU can be used ({driver.hidden or driver.describe()}); next: "
            f"amp-xla doctor, or AMP_XLA_DEVICE=cpu"
        )


def _missing_libraries(environ: Mapping[str, str]) -> List[str]:
    """Return the libraries that TensorFlow does not find in a new process; takes some seconds."""
    out = nvidia.run([sys.executable, "-c", _PROBE], {**environ, **_LOGGING})[1]
    return list(dict.fromkeys(_MISSING.findall(out)))


def _reason(driver: nvidia.Driver, environ: Mapping[str, str]) -> str:
    """Return why TensorFlow sees no GPU, and what to do next."""
    fork = backend.is_fork()
    stock_1 = backend.kind() == "tf1" and not fork
    old = "" if stock_1 else nvidia.too_old(driver)
    if old:
        return f"{old}; next: a newer driver, or an older container from docs/doctor.md"
    missing = _missing_libraries(environ)
    cuda = [name for name in missing if not name.startswith("libcuda.so")]
    if cuda:
        fix = f"make env RUNTIME={'nvtf1' if fork else 'tf2'}, on the machine with the driver"
        if stock_1:
            fix = "this build is for CUDA 10: make train RUNTIME=tf2, RUNTIME=nvtf1 or "
            fix += "make docker-train"
        return f"{', '.join(cuda)} not found; next: {fix}"
    if missing:
        return (
            f"{missing[0]}, the driver's own library, not found; next: install the driver's "
            f"libraries (Debian: libcuda1, Ubuntu: libnvidia-compute-...); start a container with "
            f"its GPUs (docker --gpus all, apptainer --nv)"
        )
    said = f"nvidia-smi reports: {driver.problem}" if driver.problem else "it gives no access"
    return f"{said}; next: restart the machine, or install the driver again"
