"""What the machine's GPU asks of a runtime. The reader of nvidia-smi is amp_xla's own."""

from __future__ import annotations

import platform
import shutil
from typing import Mapping, NamedTuple, Sequence

from amp_xla.backend import nvidia

TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


class Device(NamedTuple):
    """What training will run on.

    Attributes:
      cuda: the environment needs CUDA libraries.
      unreached: a GPU is there, and no runtime here reaches it.
      what: the GPU, or why there is none; '' on a machine that never had one.
      blackwell: newer than what TensorFlow 2.17 and NVIDIA's 1.15 have kernels for.
      old: of the GPUs, one at least is below what stock TensorFlow 1.15 (CUDA 10) lacks.
    """

    cuda: bool
    what: str = ""
    blackwell: bool = False
    old: bool = False
    unreached: bool = False


def asked_device(environ: Mapping[str, str], arguments: Sequence[str]) -> str:
    """`auto`, `cpu` or `gpu`: of `--device` among a recipe's arguments, else AMP_XLA_DEVICE."""
    words = list(arguments)
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name == "--device":
            return value if sign else "".join(words[index + 1 : index + 2])
    return environ.get("AMP_XLA_DEVICE") or "auto"


def find_device(environ: Mapping[str, str], arguments: Sequence[str] = ()) -> Device:
    """Looks at driver, settings and nvidia-smi; a second or more where there is a GPU."""
    asked = asked_device(environ, arguments)
    driver = nvidia.look(environ)
    if asked == "cpu":
        return Device(False, "device=cpu" if driver.shown else "")
    if not driver.shown:
        if driver.hidden and (driver.gpus or driver.trace):
            return Device(False, f"{driver.hidden} hides the GPU: on the CPU")
        if asked == "gpu":
            return Device(True, "device=gpu, though no driver is here")
        return Device(False, f"no GPU ({driver.describe()})" if driver.problem else "")
    what = driver.describe()
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        return Device(
            False,
            f"{what}: no CUDA build of TensorFlow 2.17 for {machine}, CPU only",
            unreached=True,
        )
    old = nvidia.too_old(driver)
    if old:
        return Device(False, f"{what}: {old}, CPU only", unreached=True)
    for gpu in driver.gpus:
        if gpu.busy:
            what += f", BUSY: {gpu.free:.1f} of {gpu.total:.1f} GiB free"
            break
    found = [c for c in (gpu.likely_capability for gpu in driver.gpus) if c is not None]
    blackwell = bool(found) and max(found) >= nvidia.BLACKWELL
    return Device(True, what, blackwell, bool(found) and max(found) < (8, 0))


def container_hint() -> str:
    """`, or make docker-train` where a container engine is installed."""
    engine = shutil.which("docker") or shutil.which("podman")
    return " or make docker-train" if engine else ""
