"""The op lists of the mixed-precision pass, and the environment variables that change them.

TensorFlow 1.15 trains on a GPU in NVIDIA's containers, so it is inspected with their lists:
Softmax, LogSoftmax, Log and Log1p are gray instead of black, and Einsum is white.
Source: ``auto_mixed_precision_lists.h`` of NVIDIA/tensorflow, branch r1.15.5+nv23.03.
"""

from __future__ import annotations

import os
from typing import Dict, Mapping

from amp_xla import backend
from amp_xla.settings import flags

PREFIX = flags.REWRITE_PREFIX
Colors = Mapping[str, str]

# TensorFlow 2.4 renamed the lists; 1.15 ignores the new names.
_LISTS = flags.LISTS_TF1 if backend.kind() == "tf1" else flags.LISTS_TF2
_NAMES = dict(zip(("white", "gray", "black", "clear"), _LISTS))
_FORK_GRAY = ("Softmax", "Log", "Log1p", "LogSoftmax")
_FORK_WHITE = ("Einsum",)


def environment() -> Dict[str, str]:
    """Return variables that make the pass of stock TensorFlow 1.15 use NVIDIA's lists.

    An op that the user's variables move to another list stays on that list.
    """
    if backend.kind() != "tf1" or backend.is_fork():
        return {}
    changes = {}
    for stem, action, opposite, ops in (
        ("BLACKLIST", "REMOVE", "ADD", _FORK_GRAY),
        ("GRAYLIST", "ADD", "REMOVE", _FORK_GRAY),
        ("WHITELIST", "ADD", "REMOVE", _FORK_WHITE),
    ):
        name = f"{PREFIX}{stem}_{action}"
        against = os.environ.get(f"{PREFIX}{stem}_{opposite}", "").split(",")
        added = [op for op in ops if op not in against]
        changes[name] = ",".join(word for word in (os.environ.get(name), *added) if word)
    return changes


def parse_buckets(text: str) -> Colors:
    """Return op -> color from the ``paintbuckets`` file that the pass writes to its LOG_PATH.

    Colors: ``white``: always half; ``gray``: half between half ops; ``clear``: half next to a
    half op; ``black``: never half, and neither are the ops after it, up to the next white op.
    """
    titles = {f"{name}:": color for color, name in _NAMES.items()}  # e.g. ``WhiteList:``
    colors: Dict[str, str] = {}
    color = ""
    for word in text.split():
        if word.upper() in titles:
            color = titles[word.upper()]
        else:
            colors[word] = color
    return colors


def keep_in_float32(op: str, lists: Colors) -> str:
    """Return assignments for a shell that keep all nodes of type ``op`` in float32."""
    color = lists.get(op, "black")
    moved = "" if color == "black" else f"{PREFIX}{_NAMES[color]}_REMOVE={op} "
    return f"{moved}{PREFIX}{_NAMES['black']}_ADD={op}"
