"""The running program: how its commands are typed on this machine, and git's revision."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = Path(sys.executable).with_name("amp-xla")  # of an installed package
TF2_IMAGE = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


def checkout() -> Optional[str]:
    """Return the path of this checkout, quoted for a shell; None for an installed package."""
    runs = (ROOT / "Makefile").is_file() and not _SCRIPT.is_file()
    return shortest(ROOT) if runs else None


def shortest(path: Path) -> str:
    """Return a path quoted for a shell, relative to the working folder if that is shorter."""
    with contextlib.suppress(OSError):  # the working folder was deleted
        return shlex.quote(min(os.path.relpath(str(path)), str(path), key=len))
    return shlex.quote(str(path))


def in_own_environment() -> bool:
    """Return whether this Python belongs to an environment that ``./amp-xla`` has built."""
    return Path(sys.prefix).parent == ROOT / ".venvs"


def running(module: str, python: str = sys.executable) -> List[str]:
    """Return the command of ``python -m module``, without the current folder on Python's path.

    Files there, such as a numpy.py or another checkout, must not replace the installed modules.
    """
    code = "import sys; sys.path[:] = filter(None, sys.path); "
    code += f"{str(ROOT)!r} in sys.path or sys.path.insert(0, {str(ROOT)!r}); import runpy; "
    code += f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [python, "-c", code]


def program() -> str:
    """Return the first words of a command line for this program, e.g. ``./amp-xla``."""
    folder = checkout()
    if folder is not None:
        return f"{folder}/amp-xla"
    if not _SCRIPT.is_file():
        return f"{shlex.quote(sys.executable)} -m amp_xla"
    return "amp-xla" if shutil.which("amp-xla") == str(_SCRIPT) else shortest(_SCRIPT)


def as_typed(text: str) -> str:
    """Return a message with its ``amp-xla``, ``make`` and ``pip`` commands changed to work here."""
    folder = checkout()
    if folder not in (None, "."):
        text = re.sub(r"\bmake (?=env|docker-|train\b)", lambda _: f"make -C {folder} ", text)
    text = re.sub(r"(?<![\w./'-])amp-xla (?=[a-z])", lambda _: f"{program()} ", text)
    if in_own_environment():  # which has no pip
        pip = f"{program()} pip install "
        text = re.sub(r"(?<![\w./-])(?<!amp-xla )pip install ", lambda _: pip, text)
    return text


def environment() -> str:
    """Return the command that installs TensorFlow and bert4keras."""
    if checkout():
        return "make env"
    runtime, bert4keras = ("tf1", "0.11.3") if sys.version_info < (3, 8) else ("tf2", "0.11.5")
    return f"pip install 'amp-xla[{runtime}]' && pip install --no-deps bert4keras=={bert4keras}"


def container(image: str) -> str:
    """Return the command that starts a container of an image."""
    if checkout():
        return f"make docker-train BASE_IMAGE={image}"
    return f"docker run --rm -it --gpus all {image}"


def horovod_from() -> str:
    """Return the words that say how to get Horovod."""
    if in_own_environment():  # tf1, tf2 or tf2-cuda
        script = shortest(ROOT / "scripts/build_horovod.sh")
        return f"{script} {Path(sys.prefix).name.partition('-')[0]} builds it"
    return f"NVIDIA's containers have it: {container(TF2_IMAGE)}"


def revision() -> Optional[str]:
    """Return git's short hash, with ``+changes`` if files differ; None if it is unknown.

    If git does not track this file, as in a container image, return the environment variable
    ``SOURCE_REVISION``. Changes in docs/results are ignored, because benchmarks write there.
    """
    files = ["--untracked-files=no", "--", ":/", ":(top,exclude)docs/results"]
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # another repository may be around
        changed = _git("status", "--porcelain", *files)
        return _git("describe", "--always", "--exclude", "*") + "+changes" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SOURCE_REVISION")


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    out = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=10)
    return out.decode().strip()
