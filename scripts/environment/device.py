"""Find out whether a runtime needs CUDA libraries. amp_xla.backend.nvidia reads nvidia-smi."""

from __future__ import annotations

import os
import platform
import shutil
from typing import NamedTuple

from amp_xla.backend import nvidia

TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


class Device(NamedTuple):
    """The device that training will run on.

    Attributes:
      cuda: the environment needs CUDA libraries.
      what: the GPU, or why there is none; '' on a machine without a driver.
      unusable: there is a GPU, but no runtime on this host can use it.
      blackwell: newer than the kernels of TensorFlow 2.17 and of NVIDIA's 1.15.
    """

    cuda: bool
    what: str = ""
    unusable: bool = False
    blackwell: bool = False


def find_device() -> Device:
    """Look at driver, settings and nvidia-smi; this takes a second or more if there is a GPU."""
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
