"""How a command is typed here: ``make doctor`` in a checkout, ``amp-xla doctor`` elsewhere.

Every message that names a command gets its words from this function, so that the advice can be
followed where it is read.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
EMPTY: Mapping[str, str] = MappingProxyType({})
CONTAINER = "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"


def in_checkout() -> bool:
    """True where ``make`` finds this project's Makefile: the working folder is the checkout."""
    try:
        return (ROOT / "Makefile").is_file() and Path.cwd() == ROOT
    except OSError:  # the working folder was deleted
        return False


def typed(command: str, words: Sequence[str] = (), **variables: str) -> str:
    """The line to type for ``command``.

    Args:
      command: a command of ``python -m amp_xla``, which is also a target of the Makefile.
      words: flags; the recipe's own where ``command`` is about a recipe.
      variables: the Makefile's, e.g. ``RECIPE="classification"``; elsewhere each is a flag.

    ::

        typed("predict", ["--file", "texts.txt"], RUN="runs/a")
        make predict RUN=runs/a ARGS="--file texts.txt"       # in a checkout
        amp-xla predict --run runs/a --file texts.txt         # elsewhere
    """
    outside = "python -m amp_xla" if (ROOT / "Makefile").is_file() else "amp-xla"
    return line("make" if in_checkout() else outside, command, words, variables)


def line(
    style: str, command: str, words: Sequence[str] = (), variables: Mapping[str, str] = EMPTY
) -> str:
    """See ``typed``; ``style`` is ``make`` or the program's name."""
    if style == "make":
        if command == "tuned":
            command, variables = "train", {**variables, "TUNED": "1"}
        values = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        given = _quoted(" ".join(map(shlex.quote, words)))
        return " ".join(["make", command, *values, *([f"ARGS={given}"] if words else [])])
    flags = [f"--{name.lower()} {shlex.quote(value)}" for name, value in variables.items()]
    apart = ["--"] if words and command in ABOUT_A_RECIPE else []
    return " ".join([style, command, *flags, *apart, *map(shlex.quote, words)])


# Their own flags come first, the recipe's after `--`.
ABOUT_A_RECIPE = ("train", "inspect", "rehearse", "tune")


def _quoted(text: str) -> str:
    """One word of a shell, in double quotes where they do."""
    return shlex.quote(text) if any(c in text for c in '"$`\\!') else f'"{text}"'


def environment() -> str:
    """The command that brings TensorFlow and bert4keras."""
    if in_checkout():
        return "make env"
    runtime, bert4keras = ("tf1", "0.11.3") if sys.version_info < (3, 8) else ("tf2", "0.11.5")
    return f"pip install 'amp-xla[{runtime}]' && pip install --no-deps bert4keras=={bert4keras}"


def container(image: str = "") -> str:
    """The command that starts NVIDIA's container, or another ``image`` of it."""
    if in_checkout():
        return "make docker-train" + (f" BASE_IMAGE={image}" if image else "")
    return f"docker run --rm -it --gpus all {image or CONTAINER}"
