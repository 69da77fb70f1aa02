"""The runtimes, and the choice of one for a command."""

from __future__ import annotations

import platform
import sys
from typing import Dict, NamedTuple, Optional, Tuple

from amp_xla.process.typed import TF2_IMAGE
from scripts.environment import SetupError
from scripts.environment.device import Device, container_hint, find_device
from scripts.environment.installed import (
    distributions,
    inside_container,
    runtime_of,
    tensorflow_version,
)
from scripts.environment.pythons import Interpreter, find, probe


class Runtime(NamedTuple):
    """An environment that can be built from a lock file.

    Attributes:
      name: folder under .venvs/ and lock file under requirements/.
      pythons: minor versions for which the lock was made, the preferred one first.
      gigabytes: size on disk; the download is about half as large.
      can_download: whether uv can download one of these Pythons.
      title: name shown to the user; '' = ``name``.
    """

    name: str
    pythons: Tuple[str, ...]
    gigabytes: float
    can_download: bool = True
    title: str = ""


RUNTIMES: Dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        # PyPI has TensorFlow 1.15 for Python 3.7 at most; uv can only download later ones.
        Runtime("tf1", ("3.7",), 1.6, can_download=False),
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
      python: None = uv downloads runtime.pythons[0].
      provided: whether `python` already has TensorFlow, so that nothing is built.
      reason: why it was chosen, for the user.
      complete: whether a provided Python also has the packages that this project needs.
    """

    runtime: Runtime
    python: Optional[Interpreter]
    provided: bool
    reason: str
    complete: bool = True

    def line(self) -> str:
        """Return the line that shows the choice to the user."""
        return f"runtime {self.runtime.title or self.runtime.name}: {self.reason}"


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
    if request == "dev":
        return _from_lock("dev", "the checkers")
    if python:
        interpreter = probe(python)
        if interpreter is None:
            raise SetupError(f"PYTHON={python} does not run, or is not a 64-bit CPython.")
        choice = _provided(request, interpreter, "PYTHON")
        if choice is None:
            raise SetupError(
                f"PYTHON={python} has no TensorFlow. Leave PYTHON out to build an environment."
            )
        return choice
    if request == "jax":
        return _from_lock("jax", why or "RUNTIME=jax")
    if inside_container():
        # `python3` in the container is the Python that runs this.
        choice = _provided(request, Interpreter(sys.executable, sys.version_info[:3]), "container")
        if choice:
            return choice
    device = find_device()
    if request != "auto":
        return _requested(request, device, why or f"RUNTIME={request}")
    if device.unusable:
        return _from_lock("tf2", device.what, container_hint()[4:])
    return _on_gpu(device) if device.cuda else _on_cpu(device.what)


def _provided(request: str, python: Interpreter, origin: str) -> Optional[Choice]:
    installed = distributions(python.path)
    version = tensorflow_version(python.path, installed)
    if version is None:
        return None
    name = runtime_of(version)
    # NVIDIA's wheels and NVIDIA's image are the same runtime here.
    if request not in ("auto", name, f"nv{name}"):
        raise SetupError(
            f"RUNTIME={request}, but this {origin}'s {python} has TensorFlow {version}, which is"
            f" {name}. Use RUNTIME={name}, RUNTIME=auto or a {request} image."
        )
    reason = f"this {origin}'s {python} has TensorFlow {version}, used as it is"
    return Choice(RUNTIMES[name], python, True, reason, "bert4keras" in installed)


def _on_gpu(device: Device) -> Choice:
    """Choose tf2-cuda or nvtf1: PyPI's TensorFlow 1.15 needs CUDA 10, too old for Ampere GPUs."""
    if device.blackwell:
        slow = "its kernels are compiled at the first start, which takes half an hour or fails"
        image = f"a container that has them: make docker-train BASE_IMAGE={TF2_IMAGE}"
        return _from_lock("tf2-cuda", f"{device.what}; {slow}", image)
    if not find(RUNTIMES["tf2-cuda"].pythons) and find(RUNTIMES["nvtf1"].pythons):
        return _from_lock("nvtf1", device.what, f"RUNTIME=tf2{container_hint()} uses TensorFlow 2")
    other = f"RUNTIME=nvtf1{container_hint()} for NVIDIA's TensorFlow 1.15"
    return _from_lock("tf2-cuda", device.what, other)


def _on_cpu(no_gpu: str) -> Choice:
    """Choose tf1 if a Python 3.7 is installed, else tf2.

    Args:
      no_gpu: why no GPU is used; '' on a machine without a driver.
    """
    prefix = f"{no_gpu}; " if no_gpu else ""
    unsupported = _no_tensorflow_1()
    if unsupported:
        return _from_lock("tf2", prefix + unsupported)
    python = find(RUNTIMES["tf1"].pythons)
    if python is None:
        return _from_lock("tf2", f"{prefix}no Python 3.7 found, which TensorFlow 1.15 needs")
    return Choice(
        RUNTIMES["tf1"], python, False, f"{prefix}found {python}; RUNTIME=tf2 uses TensorFlow 2"
    )


def _requested(name: str, device: Device, why: str) -> Choice:
    unsupported = _no_tensorflow_1() if name in ("tf1", "nvtf1") else ""
    if unsupported:
        raise SetupError(f"RUNTIME={name}: {unsupported}. Use RUNTIME=tf2.")
    why += f"; {device.what}" if device.what else ""
    if name == "tf1" and device.cuda:
        why += ", which this TensorFlow's CUDA 10 may not support: use RUNTIME=nvtf1"
    return _from_lock("tf2-cuda" if name == "tf2" and device.cuda else name, why)


def _from_lock(name: str, why: str, other: str = "") -> Choice:
    runtime = RUNTIMES[name]
    python = find(runtime.pythons)
    if python is None and not runtime.can_download:
        raise SetupError(
            "RUNTIME=tf1 needs Python 3.7, the last one for PyPI's TensorFlow 1.15, and none was"
            " found. Install one (`pyenv install 3.7`, or `conda create -n py37 python=3.7`),"
            " use the container (`make docker-train`), or RUNTIME=tf2."
        )
    using = f"using {python}" if python else f"uv will download Python {runtime.pythons[0]}"
    return Choice(runtime, python, False, "; ".join(filter(None, (why, using, other))))


def _no_tensorflow_1() -> str:
    """Return why TensorFlow 1.15 cannot be installed on this machine, or ''."""
    machine = f"{platform.system()} {platform.machine()}"
    return "" if machine == "Linux x86_64" else f"PyPI has no TensorFlow 1.15 for {machine}"
