"""The running source: commands as they are typed in its checkout or not, and git's revision."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"
TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


def in_checkout() -> bool:
    """Return whether the working folder is this project's checkout."""
    try:
        return (ROOT / "Makefile").is_file() and Path.cwd() == ROOT
    except OSError:  # the working folder was deleted
        return False


def in_own_environment() -> bool:
    """Return whether this Python is that of an environment which ``./amp-xla`` has built."""
    return in_checkout() and Path(sys.prefix).parent == ROOT / ".venvs"


def as_typed(text: str) -> str:
    """Return a message whose ``amp-xla COMMAND`` and ``pip install`` can be typed here."""
    if in_checkout():
        text = re.sub(r"(?<![\w./'-])amp-xla (?=[a-z])", "./amp-xla ", text)
    if in_own_environment():  # which has no pip
        text = re.sub(r"(?<![\w./-])(?<!amp-xla )pip install ", "./amp-xla pip install ", text)
    return text


def environment() -> str:
    """Return the command that installs TensorFlow and bert4keras."""
    if in_checkout():
        return "make env"
    runtime, bert4keras = ("tf1", "0.11.3") if sys.version_info < (3, 8) else ("tf2", "0.11.5")
    return f"pip install 'amp-xla[{runtime}]' && pip install --no-deps bert4keras=={bert4keras}"


def container(image: str = "") -> str:
    """Return the command that starts NVIDIA's container, or another ``image``."""
    if in_checkout():
        return "make docker-train" + (f" BASE_IMAGE={image}" if image else "")
    return f"docker run --rm -it --gpus all {image or CONTAINER}"


def revision() -> Optional[str]:
    """Return git's short hash, with ``+changes`` if files differ; None if it is unknown.

    A container image has no repository; there the variable ``SOURCE_REVISION`` is returned. Pages
    of results do not count: each command that measures changes one.
    """
    files = ["--untracked-files=no", "--", ":/", ":(top,exclude)docs/results"]
    try:
        changed = _git("status", "--porcelain", *files)
        return _git("describe", "--always", "--exclude", "*") + "+changes" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SOURCE_REVISION")


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    out = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=10)
    return out.decode().strip()
