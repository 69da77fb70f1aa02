"""The runtimes, and the choice of one for a command."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from typing import Dict, NamedTuple, Optional, Tuple

from amp_xla.backend import nvidia
from amp_xla.process.checkout import TF2_IMAGE
from scripts.environment import SetupError
from scripts.environment.installed import (
    distributions,
    find,
    inside_container,
    runtime_of,
    tensorflow_version,
)


class Runtime(NamedTuple):
    """An environment that can be built from a lock file.

    Attributes:
      name: folder under .venvs/ and lock file under requirements/.
      pythons: minor versions for which the lock was made, the preferred one first.
      gigabytes: size on disk; the download is about half as large.
      title: name shown to the user; '' = ``name``.
    """

    name: str
    pythons: Tuple[str, ...]
    gigabytes: float
    title: str = ""


RUNTIMES: Dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        # PyPI has TensorFlow 1.15 for Python 3.7 at most.
        Runtime("tf1", ("3.7",), 1.6),
        Runtime("tf2", ("3.12", "3.11", "3.10"), 2.1),
        # tf2 on a GPU. It has its own folder, as login and GPU nodes may share a checkout.
        Runtime("tf2-cuda", ("3.12", "3.11", "3.10"), 5.0, title="tf2 with CUDA"),
        # TensorFlow 1.15 from NVIDIA's package index.
        Runtime("nvtf1", ("3.8",), 7.0),
        Runtime("jax", ("3.12", "3.13", "3.11"), 0.6),
        Runtime("dev", ("3.12", "3.11", "3.13", "3.10"), 0.2),
    )
}
REQUESTS = ("auto", "tf1", "tf2", "nvtf1", "jax")


class Choice(NamedTuple):
    """The runtime and the Python of a command.

    Attributes:
      python: path; '' = uv downloads runtime.pythons[0].
      provided: whether this Python has TensorFlow and is used as it is.
      reason: why it was chosen, for the user.
      complete: whether a provided Python also has the packages that this project needs.
    """

    runtime: Runtime
    python: str
    provided: bool
    reason: str
    complete: bool = True

    def line(self) -> str:
        """Return the line that shows the choice to the user."""
        return f"runtime {self.runtime.title or self.runtime.name}: {self.reason}"


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
    driver = nvidia.look()
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


def choose(request: str, python: str = "", why: str = "") -> Choice:
    """Return the runtime and the Python for a request.

    Args:
      request: one of REQUESTS, or `dev` for the checkers.
      python: path of a Python with TensorFlow to use as it is, or ''.
      why: reason of the request, for the user; '' = RUNTIME was set.

    Raises:
      SetupError: the request is unknown, or this machine cannot fulfil it.
    """
    if request not in (*REQUESTS, "dev"):
        raise SetupError(f"RUNTIME={request} is unknown. Allowed: {', '.join(REQUESTS)}.")
    why = why or f"RUNTIME={request}"
    if python and request != "dev":
        choice = _provided(request, os.path.abspath(shutil.which(python) or python), "PYTHON")
        if choice is None:
            raise SetupError(
                f"PYTHON={python} does not run, or has no TensorFlow. Leave PYTHON out to build an"
                " environment."
            )
        return choice
    if request in ("dev", "jax"):
        return _from_lock(request, why)
    if inside_container():
        choice = _provided(request, sys.executable, "container")  # `python3` in the container
        if choice:
            return choice
    device = find_device()
    if request != "auto":
        return _requested(request, device, why)
    engine = shutil.which("docker") or shutil.which("podman")
    container = "make docker-train" if engine else ""
    if device.unusable:
        return _from_lock("tf2", device.what, container)
    return _on_gpu(device, container) if device.cuda else _on_cpu(device.what)


def _provided(request: str, python: str, origin: str) -> Optional[Choice]:
    installed = distributions(python)
    version = tensorflow_version(python, installed)
    if version is None:
        return None
    name = runtime_of(version)
    # NVIDIA's wheels and NVIDIA's image are the same runtime here.
    if request not in ("auto", name, f"nv{name}"):
        raise SetupError(
            f"RUNTIME={request}, but this {origin}'s Python ({python}) has TensorFlow {version},"
            f" which is {name}. Use RUNTIME={name}, RUNTIME=auto or a {request} image."
        )
    reason = f"this {origin}'s Python ({python}) has TensorFlow {version}, used as it is"
    return Choice(RUNTIMES[name], python, True, reason, "bert4keras" in installed)


def _on_gpu(device: Device, container: str) -> Choice:
    """Choose tf2-cuda or nvtf1: PyPI's TensorFlow 1.15 needs CUDA 10, too old for Ampere GPUs."""
    if device.blackwell:
        slow = "its kernels are compiled at the first start, which takes half an hour or fails"
        image = f"a container that has them: make docker-train BASE_IMAGE={TF2_IMAGE}"
        return _from_lock("tf2-cuda", f"{device.what}; {slow}", image)
    or_container = f" or {container}" if container else ""
    if not find(RUNTIMES["tf2-cuda"].pythons) and find(RUNTIMES["nvtf1"].pythons):
        return _from_lock("nvtf1", device.what, f"RUNTIME=tf2{or_container} uses TensorFlow 2")
    other = f"RUNTIME=nvtf1{or_container} for NVIDIA's TensorFlow 1.15"
    return _from_lock("tf2-cuda", device.what, other)


def _on_cpu(no_gpu: str) -> Choice:
    """Choose tf1 if a Python 3.7 is installed, else tf2.

    Args:
      no_gpu: why no GPU is used; '' on a machine without a driver.
    """
    reason = _no_tensorflow_1()
    python = "" if reason else find(RUNTIMES["tf1"].pythons)
    if python:
        reason = f"found Python 3.7 ({python}); RUNTIME=tf2 uses TensorFlow 2"
        return Choice(RUNTIMES["tf1"], python, False, _joined(no_gpu, reason))
    reason = reason or "no Python 3.7 found, which TensorFlow 1.15 needs"
    return _from_lock("tf2", _joined(no_gpu, reason))


def _requested(name: str, device: Device, why: str) -> Choice:
    unsupported = _no_tensorflow_1() if name in ("tf1", "nvtf1") else ""
    if unsupported:
        raise SetupError(f"RUNTIME={name}: {unsupported}. Use RUNTIME=tf2.")
    why = _joined(why, device.what)
    if name == "tf1" and device.cuda:
        why += ", which this TensorFlow's CUDA 10 may not support: use RUNTIME=nvtf1"
    return _from_lock("tf2-cuda" if name == "tf2" and device.cuda else name, why)


def _from_lock(name: str, why: str, other: str = "") -> Choice:
    runtime = RUNTIMES[name]
    python = find(runtime.pythons)
    if not python and name == "tf1":  # uv can only download later Pythons
        raise SetupError(
            "RUNTIME=tf1 needs Python 3.7, the last one for PyPI's TensorFlow 1.15, and none was"
            " found. Install one (`pyenv install 3.7`, or `conda create -n py37 python=3.7`),"
            " use the container (`make docker-train`), or RUNTIME=tf2."
        )
    using = f"using {python}" if python else f"uv will download Python {runtime.pythons[0]}"
    return Choice(runtime, python, False, _joined(why, using, other))


def _joined(*clauses: str) -> str:
    return "; ".join(filter(None, clauses))


def _no_tensorflow_1() -> str:
    """Return why TensorFlow 1.15 cannot be installed on this machine, or ''."""
    machine = f"{platform.system()} {platform.machine()}"
    return "" if machine == "Linux x86_64" else f"PyPI has no TensorFlow 1.15 for {machine}"
