"""Find a Python of this machine and the packages in it; detect containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from scripts.environment import SetupError

# Folders of version managers; MINOR is e.g. 3.12.
MANAGED = (
    ("PYENV_ROOT", "~/.pyenv", "versions/MINOR.*"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-MINOR.*"),
    ("ASDF_DATA_DIR", "~/.asdf", "installs/python/MINOR.*"),
    ("MISE_DATA_DIR", "~/.local/share/mise", "installs/python/MINOR.*"),
)
# Docker and Podman leave a file; Apptainer, Kubernetes and NVIDIA's images set a variable.
MARKER_FILES = ("/.dockerenv", "/run/.containerenv")
MARKER_VARIABLES = (
    "SINGULARITY_CONTAINER",
    "APPTAINER_CONTAINER",
    "KUBERNETES_SERVICE_HOST",
    "NVIDIA_TENSORFLOW_VERSION",
)
# Packages with the module `tensorflow`: NVIDIA's images have the first, its wheels the second.
TENSORFLOW = ("tensorflow", "nvidia-tensorflow", "tensorflow-gpu", "tensorflow-cpu")
DISTRIBUTION = re.compile(r"(.+?)-(\d[^-]*)(?:-py\d.*)?\.(?:dist|egg)-info")
PRINT_PATH = "import json, sys; print(json.dumps(sys.path))"
PRINT_VERSION = "import tensorflow; print('\\n' + tensorflow.__version__)"


def find(minors: Sequence[str]) -> str:
    """Return the path of a Python of the first version in `minors` that is installed, or ''.

    uv would not see those of version managers: on PATH they are shims, which fail for most
    versions.
    """
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    for minor in minors:
        folders = [*_managed(minor), *(f for f in on_path if Path(f).name != "shims")]
        path = shutil.which(f"python{minor}", path=os.pathsep.join(folders))
        if path:
            return path
    return ""


def _managed(minor: str) -> List[str]:
    """Return the folders of version managers that may have a Python of this version ('3.7')."""
    prefixes: List[str] = []
    for variable, default, pattern in MANAGED:
        folder = Path(os.path.expanduser(os.environ.get(variable) or default))
        prefixes += map(str, folder.glob(pattern.replace("MINOR", minor)))
    try:
        conda = Path(os.path.expanduser("~/.conda/environments.txt")).read_text()
    except OSError:
        conda = ""
    return [os.path.join(prefix, "bin") for prefix in (*prefixes, *conda.splitlines()) if prefix]


def inside_container() -> bool:
    """Return whether this is Docker, Podman, Apptainer, Kubernetes or an NVIDIA image."""
    return any(os.environ.get(name) for name in MARKER_VARIABLES) or any(
        Path(name).exists() for name in MARKER_FILES
    )


def canonical(name: str) -> str:
    """Return a package name in PyPI's canonical form: typing_extensions -> typing-extensions."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(python: str) -> Dict[str, str]:
    """Return canonical name -> version of all installed packages; empty if `python` fails.

    Reads the names of folders, which takes 10 ms; pip takes 1 s.
    """
    try:
        path = json.loads(_run(python, PRINT_PATH))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    versions: Dict[str, str] = {}
    for folder in path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            match = DISTRIBUTION.fullmatch(name)
            if match:  # the first folder of sys.path wins, as in an import
                versions.setdefault(canonical(match.group(1)), match.group(2))
    return versions


def tensorflow_version(python: str, installed: Mapping[str, str]) -> Optional[str]:
    """Return the version of the TensorFlow that `python` would import, or None.

    Imports TensorFlow, which takes seconds, only in an NVIDIA image without a known package.
    """
    for name in TENSORFLOW:
        if name in installed:
            return installed[name]
    if not os.environ.get("NVIDIA_TENSORFLOW_VERSION"):
        return None
    try:
        return _run(python, PRINT_VERSION).split()[-1]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def runtime_of(tensorflow: str) -> str:
    """Return 'tf1' for TensorFlow 1.15.x, 'tf2' for 2.x.

    Raises:
      SetupError: it is another TensorFlow.
    """
    if tensorflow.startswith("1.15"):
        return "tf1"
    if tensorflow.startswith("2."):
        return "tf2"
    raise SetupError(f"TensorFlow {tensorflow}; allowed: 1.15 (tf1) or 2.x (tf2)")


def _run(python: str, code: str) -> str:
    answer = subprocess.run(
        [python, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        cwd="/",  # not the checkout, whose folders shadow installed packages
        timeout=120,
        check=True,
    )
    return answer.stdout.decode()
