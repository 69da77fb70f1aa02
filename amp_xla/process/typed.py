"""Commands to show in messages; they differ between a checkout and an installed package."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"
TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


def in_checkout() -> bool:
    """Return whether the working folder is this project's checkout."""
    try:
        return (ROOT / "Makefile").is_file() and Path.cwd() == ROOT
    except OSError:  # the working folder was deleted
        return False


def program() -> str:
    """Return how to type the program: ``./amp-xla`` in a checkout, else ``amp-xla``."""
    return "./amp-xla" if in_checkout() else "amp-xla"


def environment() -> str:
    """Return the command that installs TensorFlow and bert4keras."""
    if in_checkout():
        return "make env"
    runtime, bert4keras = ("tf1", "0.11.3") if sys.version_info < (3, 8) else ("tf2", "0.11.5")
    return f"pip install 'amp-xla[{runtime}]' && pip install --no-deps bert4keras=={bert4keras}"


def install(packages: str) -> str:
    """Return the command that adds packages to the environment of this process."""
    if importlib.util.find_spec("pip") is not None:
        return f"{shlex.quote(sys.executable)} -m pip install {packages}"
    bundled = ROOT / ".venvs" / "tools" / "bin" / "uv"  # uv's environments have no pip
    program = shlex.quote(str(bundled)) if bundled.is_file() and not shutil.which("uv") else "uv"
    return f"{program} pip install {packages} --python {shlex.quote(sys.executable)}"


def container(image: str = "") -> str:
    """Return the command that starts NVIDIA's container, or another ``image``."""
    if in_checkout():
        return "make docker-train" + (f" BASE_IMAGE={image}" if image else "")
    return f"docker run --rm -it --gpus all {image or CONTAINER}"
