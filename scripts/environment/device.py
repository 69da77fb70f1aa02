"""Find out whether an environment needs CUDA libraries."""

from __future__ import annotations

import os
import platform
import shutil
from typing import NamedTuple

from amp_xla.backend import nvidia


class Device(NamedTuple):
    """The device on which training will run.

    Attributes:
      cuda: whether the environment needs CUDA libraries.
      what: the GPU, or why none is used; '' on a machine without a driver.
      unusable: whether there is a GPU that no runtime on this host can use.
      blackwell: whether the GPU is newer than the kernels in TensorFlow 2.17 and NVIDIA's 1.15.
    """

    cuda: bool
    what: str = ""
    unusable: bool = False
    blackwell: bool = False


def find_device() -> Device:
    """Return the device, from driver, settings and nvidia-smi, which may take a second."""
    requested = os.environ.get("AMP_XLA_DEVICE") or "auto"
    driver = nvidia.look(os.environ)
    if requested == "cpu":
        return Device(False, "device=cpu" if driver.shown else "")
    if not driver.shown:
        if driver.hidden and (driver.gpus or driver.trace):
            return Device(False, f"{driver.hidden} hides the GPU: on the CPU")
        if requested == "gpu":
            return Device(True, "device=gpu, although this machine has no driver")
        return Device(False, f"no GPU ({driver.describe()})" if driver.problem else "")
    machine = f"{platform.system()} {platform.machine()}"
    reason = nvidia.too_old(driver)
    if machine != "Linux x86_64":
        reason = f"no CUDA build of TensorFlow 2.17 for {machine}"
    if reason:
        return Device(False, f"{driver.describe()}: {reason}, CPU only", unusable=True)
    capabilities = [gpu.capability or (0, 0) for gpu in driver.gpus]
    blackwell = max(capabilities, default=(0, 0)) >= nvidia.BLACKWELL
    return Device(True, driver.describe(), blackwell=blackwell)


def container_hint() -> str:
    """Return ` or make docker-train` if a container engine is installed."""
    engine = shutil.which("docker") or shutil.which("podman")
    return " or make docker-train" if engine else ""
