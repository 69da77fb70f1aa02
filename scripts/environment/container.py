"""Is this a container, and what does a Python bring with it?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Mapping, Optional

from scripts.environment.errors import SetupError

# Docker and Podman leave a file, Singularity and Apptainer a variable; Kubernetes leaves neither
# file with containerd but always its own variable; NVIDIA's images set the last one.
MARKER_FILES = ("/.dockerenv", "/run/.containerenv")
MARKER_VARIABLES = (
    "SINGULARITY_CONTAINER",
    "APPTAINER_CONTAINER",
    "KUBERNETES_SERVICE_HOST",
    "NVIDIA_TENSORFLOW_VERSION",
)
# Distributions that carry the module `tensorflow`: NVIDIA's containers have the plain name,
# NVIDIA's wheels the second.
TENSORFLOW = ("tensorflow", "nvidia-tensorflow", "tensorflow-gpu", "tensorflow-cpu")
DISTRIBUTION = re.compile(r"(.+?)-(\d[^-]*)(?:-py\d.*)?\.(?:dist|egg)-info")
ASK_PATH = "import json, sys; print(json.dumps(sys.path))"
ASK_VERSION = "import tensorflow; print('\\n' + tensorflow.__version__)"


def inside_container() -> bool:
    """True inside Docker, Podman, Singularity, Apptainer, Kubernetes or an NVIDIA image."""
    return any(os.environ.get(name) for name in MARKER_VARIABLES) or any(
        Path(name).exists() for name in MARKER_FILES
    )


def canonical(name: str) -> str:
    """A distribution's name as PyPI compares it: typing_extensions -> typing-extensions."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(python: str) -> Dict[str, str]:
    """Canonical name -> version of all that `python` can import, by the names of its folders.

    Cheaper than asking pip (10 ms against 1 s), and there where pip is not. Empty if `python`
    doesn't run.
    """
    try:
        path = _own_path() if python == sys.executable else json.loads(_ask(python, ASK_PATH))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    found: Dict[str, str] = {}
    for folder in path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            match = DISTRIBUTION.fullmatch(name)
            if match:
                # What comes first in sys.path is what gets imported.
                found.setdefault(canonical(match.group(1)), match.group(2))
    return found


def _own_path() -> List[str]:
    """sys.path without this checkout, which `python -m` puts in front."""
    return [entry for entry in sys.path if entry not in ("", os.getcwd())]


def tensorflow_version(python: str, installed: Mapping[str, str]) -> Optional[str]:
    """The version of the TensorFlow that `python` would import, or None.

    Importing it takes seconds and is done only in an NVIDIA image whose TensorFlow no distribution
    explains.
    """
    for name in TENSORFLOW:
        if name in installed:
            return installed[name]
    if not os.environ.get("NVIDIA_TENSORFLOW_VERSION"):
        return None
    try:
        return _ask(python, ASK_VERSION).split()[-1]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def _ask(python: str, code: str) -> str:
    answer = subprocess.run(
        [python, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        cwd="/",  # this checkout's folders must not pass for installed packages
        timeout=120,
        check=True,
    )
    return answer.stdout.decode()


def runtime_of(tensorflow: str) -> str:
    """'tf1' for TensorFlow 1.15.x, 'tf2' for 2.x.

    Raises:
      SetupError: any other TensorFlow.
    """
    if tensorflow.startswith("1.15"):
        return "tf1"
    if tensorflow.startswith("2."):
        return "tf2"
    raise SetupError(f"TensorFlow {tensorflow} can't be used. Needed: 1.15 (tf1) or 2.x (tf2).")
