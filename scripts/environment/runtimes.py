"""The runtimes, and which of them a command gets."""

from __future__ import annotations

import os
import platform
import sys
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from scripts.environment.container import (
    distributions,
    inside_container,
    runtime_of,
    tensorflow_version,
)
from scripts.environment.errors import SetupError
from scripts.environment.gpu import TF2_IMAGE, Device, container_hint, find_device
from scripts.environment.interpreters import Interpreter, find, probe


class Runtime(NamedTuple):
    """An environment that can be built from a lock file."""

    name: str  # of its folder and its lock
    pythons: Tuple[str, ...]  # minor versions that its lock was made for, best first
    gigabytes: float  # on disk; the download is about half of it
    can_download: bool  # uv knows where to get such a Python

    title: str = ""  # what the user is told, where that is not the name

    @property
    def lock(self) -> str:
        """The lock file's name under requirements/."""
        return f"{self.name}.txt"


RUNTIMES: Dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        # PyPI has TensorFlow 1.15 for Python 3.7 at most; uv offers Python from 3.8 on.
        Runtime("tf1", ("3.7",), 1.6, can_download=False),
        Runtime("tf2", ("3.12", "3.11", "3.10"), 2.1, can_download=True),
        # The same with the CUDA libraries: what RUNTIME=tf2 means where there is a GPU. A folder of
        # its own, because a login node and a GPU node may share a checkout.
        Runtime(
            "tf2-cuda", ("3.12", "3.11", "3.10"), 5.0, can_download=True, title="tf2 with CUDA"
        ),
        # NVIDIA's wheels of TensorFlow 1.15, which PyPI does not have.
        Runtime("nvtf1", ("3.8",), 7.0, can_download=True),
        Runtime("jax", ("3.12", "3.13", "3.11"), 0.6, can_download=True),
        Runtime("dev", ("3.12", "3.11", "3.13", "3.10"), 0.2, can_download=True),
    )
}
REQUESTS = ("auto", "tf1", "tf2", "nvtf1", "jax")


class Choice(NamedTuple):
    """What a command will run on."""

    runtime: Runtime
    python: Optional[Interpreter]  # None: uv downloads runtime.pythons[0]
    provided: bool  # `python` has its own TensorFlow: nothing is built
    reason: str
    complete: bool = True  # a provided Python has what this project needs beside TensorFlow

    def line(self) -> str:
        """The one line that tells the user."""
        return f"runtime {self.runtime.title or self.runtime.name}: {self.reason}"


def choose(request: str, python: str = "", arguments: Sequence[str] = ()) -> Choice:
    """Turn RUNTIME= and PYTHON= into a runtime and a Python.

    Args:
      request: `auto`, `tf1`, `tf2`, `nvtf1`, `jax`, or `dev` for the checkers.
      python: path of a Python that has TensorFlow and is to be used as it is; '' to look for one.
      arguments: of the command; `--device cpu` among them needs no CUDA libraries.

    Raises:
      SetupError: an unknown request, or one that this machine can't fulfil.
    """
    if request not in (*REQUESTS, "dev"):
        raise SetupError(f"RUNTIME={request} is unknown. Allowed: {', '.join(REQUESTS)}.")
    if request == "dev":
        return _environment("dev", "the checkers")
    if python:
        interpreter = probe(python)
        if interpreter is None:
            raise SetupError(f"PYTHON={python} does not run, or is no 64-bit CPython.")
        choice = _provided(request, interpreter, "PYTHON")
        if choice is None:
            raise SetupError(
                f"PYTHON={python} has no TensorFlow. Leave PYTHON out to have an environment built."
            )
        return choice
    if request == "jax":
        return _environment("jax", "RUNTIME=jax")
    if inside_container():
        # The Python that `python3` means here is the one that started this program.
        choice = _provided(request, Interpreter(sys.executable, sys.version_info[:3]), "container")
        if choice:
            return choice
    device = find_device(os.environ, arguments)
    if request == "auto" and device.unreached:
        return _built(RUNTIMES["tf2"], device.what, container_hint()[4:])
    if request == "auto":
        return _on_gpu(device) if device.cuda else _automatic(device.what)
    return _environment(request, f"RUNTIME={request}", device)


def _provided(request: str, python: Interpreter, origin: str) -> Optional[Choice]:
    installed = distributions(python.path)
    version = tensorflow_version(python.path, installed)
    if version is None:
        return None
    name = runtime_of(version)
    # NVIDIA's wheels and its image are one runtime to everybody else.
    if request not in ("auto", name, f"nv{name}"):
        raise SetupError(
            f"RUNTIME={request}, but this {origin}'s {python} has TensorFlow {version}, which is"
            f" {name}. Say RUNTIME={name} or RUNTIME=auto, or start from a {request} image."
        )
    reason = f"this {origin}'s {python} has TensorFlow {version}, used as it is"
    return Choice(RUNTIMES[name], python, True, reason, "bert4keras" in installed)


def _on_gpu(device: Device) -> Choice:
    """Never the stock TensorFlow 1.15, whose CUDA 10 no GPU since Ampere works with."""
    tf2, nvtf1 = RUNTIMES["tf2-cuda"], RUNTIMES["nvtf1"]
    if device.blackwell:
        why = (
            f"{device.what}; its kernels are compiled at the first start, half an hour, or refused"
        )
        other = f"a container that has them: make docker-train BASE_IMAGE={TF2_IMAGE}"
        return _built(tf2, f"{why}; {other}")
    python = None if find(tf2.pythons) else find(nvtf1.pythons)
    if python:
        return _built(nvtf1, device.what, f"RUNTIME=tf2{container_hint()} for the other")
    other = f"RUNTIME=nvtf1{container_hint()} for NVIDIA's TensorFlow 1.15"
    return _built(tf2, device.what, other)


def _automatic(what: str) -> Choice:
    """No GPU to reach, for the reason `what`: TensorFlow 1.15 if its Python is there."""
    before = f"{what}; " if what else ""
    unsupported = _no_tensorflow_1()
    if unsupported:
        return _built(RUNTIMES["tf2"], before + unsupported)
    python = find(RUNTIMES["tf1"].pythons)
    if python is None:
        why = "no Python 3.7 found, which TensorFlow 1.15 needs"
        return _built(RUNTIMES["tf2"], before + why)
    reason = f"{before}found {python}; RUNTIME=tf2 for the other"
    return Choice(RUNTIMES["tf1"], python, False, reason)


def _environment(name: str, why: str, device: Optional[Device] = None) -> Choice:
    unsupported = _no_tensorflow_1() if name in ("tf1", "nvtf1") else ""
    if unsupported:
        raise SetupError(f"RUNTIME={name}: {unsupported}. Use RUNTIME=tf2.")
    device = device or Device(False)
    why += f"; {device.what}" if device.what else ""
    if name == "tf1" and device.cuda:
        why += ", which this TensorFlow's CUDA 10 "
        why += "may not reach" if device.old else "does not reach: RUNTIME=nvtf1 does"
    return _built(RUNTIMES["tf2-cuda" if name == "tf2" and device.cuda else name], why)


def _built(runtime: Runtime, why: str, other: str = "") -> Choice:
    python = find(runtime.pythons)
    if python is None and not runtime.can_download:
        raise SetupError(
            "RUNTIME=tf1 needs a Python 3.7, the last that PyPI's TensorFlow 1.15 runs on, and none"
            " was found. Install one (`pyenv install 3.7`, or `conda create -n py37 python=3.7`),"
            " or use the container (`make docker-train`), or RUNTIME=tf2."
        )
    using = f"using {python}" if python else f"uv will download Python {runtime.pythons[0]}"
    return Choice(runtime, python, False, "; ".join(filter(None, (why, using, other))))


def _no_tensorflow_1() -> str:
    """Why this machine can't have TensorFlow 1.15, or ''."""
    machine = f"{platform.system()} {platform.machine()}"
    return "" if machine == "Linux x86_64" else f"PyPI has no TensorFlow 1.15 for {machine}"
