"""Is this a container, and which TensorFlow does a Python bring with it?"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Optional, Sequence

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
# NVIDIA's own wheels the `nvidia_` one.
DISTRIBUTION = re.compile(
    r"(?:nvidia_)?tensorflow(?:_gpu|_cpu)?-(\d[^-]*?)(?:-py\d.*)?\.(?:dist|egg)-info"
)
ASK_PATH = "import json, sys; print(json.dumps(sys.path))"
ASK_VERSION = "import tensorflow; print('\\n' + tensorflow.__version__)"


def inside_container() -> bool:
    """True inside Docker, Podman, Singularity, Apptainer, Kubernetes or an NVIDIA image."""
    return any(os.environ.get(name) for name in MARKER_VARIABLES) or any(
        Path(name).exists() for name in MARKER_FILES
    )


def tensorflow_version(python: str) -> Optional[str]:
    """The version of the TensorFlow that `python` would import, or None.

    Read from the names of its installed distributions: importing TensorFlow takes seconds, and is
    done only where a `tensorflow` lies that no distribution explains.
    """
    try:
        path = json.loads(_ask(python, ASK_PATH))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    version = _installed(path)
    if version is None and any((Path(p) / "tensorflow" / "__init__.py").exists() for p in path):
        try:
            version = _ask(python, ASK_VERSION).split()[-1]
        except (OSError, subprocess.SubprocessError, IndexError):
            return None
    return version


def _ask(python: str, code: str) -> str:
    answer = subprocess.run(
        [python, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        # Not from this checkout: its folders must not pass for installed packages.
        cwd="/",
        timeout=120,
        check=True,
    )
    return answer.stdout.decode()


def _installed(path: Sequence[str]) -> Optional[str]:
    for folder in path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            found = DISTRIBUTION.fullmatch(name)
            if found:
                return found.group(1)
    return None


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
