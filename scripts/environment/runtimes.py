"""The runtimes, and which of them a command gets."""

from __future__ import annotations

import platform
import sys
from typing import Dict, NamedTuple, Optional, Tuple

from scripts.environment.container import (
    distributions,
    inside_container,
    runtime_of,
    tensorflow_version,
)
from scripts.environment.errors import SetupError
from scripts.environment.interpreters import Interpreter, find, probe


class Runtime(NamedTuple):
    """An environment that can be built from a lock file."""

    name: str
    pythons: Tuple[str, ...]  # minor versions that its lock was made for, best first
    gigabytes: float  # on disk; the download is about half of it
    can_download: bool  # uv knows where to get such a Python

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
        Runtime("jax", ("3.12", "3.13", "3.11"), 0.6, can_download=True),
        Runtime("dev", ("3.12", "3.11", "3.13", "3.10"), 0.2, can_download=True),
    )
}
REQUESTS = ("auto", "tf1", "tf2", "jax")


class Choice(NamedTuple):
    """What a command will run on."""

    runtime: Runtime
    python: Optional[Interpreter]  # None: uv downloads runtime.pythons[0]
    provided: bool  # `python` has its own TensorFlow: nothing is built
    reason: str
    complete: bool = True  # a provided Python has what this project needs beside TensorFlow

    def line(self) -> str:
        """The one line that tells the user."""
        return f"runtime {self.runtime.name}: {self.reason}"


def choose(request: str, python: str = "") -> Choice:
    """Turn RUNTIME= and PYTHON= into a runtime and a Python.

    Args:
      request: `auto`, `tf1`, `tf2`, `jax`, or `dev` for the checkers.
      python: path of a Python that has TensorFlow and is to be used as it is; '' to look for one.

    Raises:
      SetupError: an unknown request, or one that this machine can't fulfil.
    """
    if request not in RUNTIMES and request != "auto":
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
    return _automatic() if request == "auto" else _environment(request, f"RUNTIME={request}")


def _provided(request: str, python: Interpreter, origin: str) -> Optional[Choice]:
    installed = distributions(python.path)
    version = tensorflow_version(python.path, installed)
    if version is None:
        return None
    name = runtime_of(version)
    if request not in ("auto", name):
        raise SetupError(
            f"RUNTIME={request}, but this {origin}'s {python} has TensorFlow {version}, which is"
            f" {name}. Say RUNTIME={name} or RUNTIME=auto, or start from a {request} image."
        )
    reason = f"this {origin}'s {python} has TensorFlow {version}, used as it is"
    return Choice(RUNTIMES[name], python, True, reason, "bert4keras" in installed)


def _automatic() -> Choice:
    unsupported = _no_tensorflow_1()
    if unsupported:
        return _environment("tf2", unsupported)
    python = find(RUNTIMES["tf1"].pythons)
    if python is None:
        return _environment("tf2", "no Python 3.7 found, which TensorFlow 1.15 needs")
    return Choice(RUNTIMES["tf1"], python, False, f"found {python}; RUNTIME=tf2 for the other")


def _environment(name: str, why: str) -> Choice:
    runtime = RUNTIMES[name]
    unsupported = _no_tensorflow_1() if name == "tf1" else ""
    if unsupported:
        raise SetupError(f"RUNTIME=tf1: {unsupported}. Use RUNTIME=tf2.")
    python = find(runtime.pythons)
    if python is None and not runtime.can_download:
        raise SetupError(
            "RUNTIME=tf1 needs a Python 3.7, the last that PyPI's TensorFlow 1.15 runs on, and none"
            " was found. Install one (`pyenv install 3.7`, or `conda create -n py37 python=3.7`),"
            " or use the container (`make docker-train`), or RUNTIME=tf2."
        )
    using = f"using {python}" if python else f"uv will download Python {runtime.pythons[0]}"
    return Choice(runtime, python, False, f"{why}; {using}")


def _no_tensorflow_1() -> str:
    """Why this machine can't have TensorFlow 1.15, or ''."""
    machine = f"{platform.system()} {platform.machine()}"
    return "" if machine == "Linux x86_64" else f"PyPI has no TensorFlow 1.15 for {machine}"
