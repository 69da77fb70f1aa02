"""The op lists of the mixed-precision pass: NVIDIA's or stock, and the environment's changes.

``stock`` lists are those of the installed TensorFlow. ``fork`` lists are those of NVIDIA's
TensorFlow 1.15: Softmax, LogSoftmax, Log and Log1p may be half, Einsum always is.
Source: ``auto_mixed_precision_lists.h`` of NVIDIA/tensorflow, branch r1.15.5+nv23.03.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Dict, FrozenSet, Optional, Set, Tuple

from amp_xla import backend
from amp_xla.errors import UnsupportedError
from amp_xla.settings import flags

LISTS: Tuple[str, ...] = ("fork", "stock")
PREFIX = flags.REWRITE_PREFIX

# TensorFlow 2.4 renamed the lists; 1.15 ignores the new names.
_COLORS = ("white", "gray", "black", "clear")
_NAMES = {
    "tf1": dict(zip(_COLORS, flags.LISTS_TF1)),
    "tf2": dict(zip(_COLORS, flags.LISTS_TF2)),
}
_FORK_GRAY = ("Softmax", "Log", "Log1p", "LogSoftmax")
_FORK_WHITE = ("Einsum",)


def environment(lists: str) -> Dict[str, str]:
    """Return variables that make this TensorFlow's pass use ``lists``, ``fork`` or ``stock``.

    An op that the user's environment moves stays as the user moved it.

    Raises:
      UnsupportedError: unknown ``lists``, or ``fork`` on TensorFlow 2.
    """
    if lists not in LISTS:
        raise UnsupportedError(f"lists={lists!r} is not known; allowed: {', '.join(LISTS)}")
    if lists == "fork" and backend.kind() != "tf1":
        raise UnsupportedError(
            "lists=fork means the lists of NVIDIA's TensorFlow 1.15; this is TensorFlow 2, whose "
            "own lists have Softmax and Einsum in half already; allowed here: stock"
        )
    if (lists == "fork") == backend.is_fork():
        return {}
    add, remove = ("ADD", "REMOVE") if lists == "fork" else ("REMOVE", "ADD")
    changes = {}
    for stem, action, opposite, ops in (
        ("BLACKLIST", remove, add, _FORK_GRAY),
        ("GRAYLIST", add, remove, _FORK_GRAY),
        ("WHITELIST", add, remove, _FORK_WHITE),
    ):
        name = f"{PREFIX}{stem}_{action}"
        against = os.environ.get(f"{PREFIX}{stem}_{opposite}", "").split(",")
        added = [op for op in ops if op not in against]
        changes[name] = ",".join(word for word in (os.environ.get(name), *added) if word)
    return changes


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The lists that a pass used, read from its log files.

    Attributes:
      white: always half. gray: half between half neighbours. clear: half next to half.
      black: never half, and nothing after them is until the next white op.
    """

    white: FrozenSet[str]
    gray: FrozenSet[str]
    black: FrozenSet[str]
    clear: FrozenSet[str]

    def of(self, op: str) -> str:
        """Return ``white``, ``gray``, ``black``, ``clear``, or ``unlisted`` (never half)."""
        for field in dataclasses.fields(self):
            if op in getattr(self, field.name):
                return field.name
        return "unlisted"


def parse_buckets(text: str) -> Optional[OpLists]:
    """Read the ``paintbuckets`` file that the pass writes to its LOG_PATH; None if empty."""
    # Titles are e.g. ``WhiteList:``.
    titles = {f"{name}:": color for names in _NAMES.values() for color, name in names.items()}
    ops: Dict[str, Set[str]] = {color: set() for color in _COLORS}
    current: Set[str] = set()
    for word in text.split():
        if word.upper() in titles:
            current = ops[titles[word.upper()]]
        else:
            current.add(word)
    if not ops["white"]:
        return None
    return OpLists(**{name: frozenset(members) for name, members in ops.items()})


def keep_in_float32(op: str, lists: OpLists) -> str:
    """Return environment assignments, for a shell, after which ``op`` is never converted."""
    names, color = _NAMES[backend.kind()], lists.of(op)
    moved = f"{PREFIX}{names[color]}_REMOVE={op} " if color in ("white", "gray", "clear") else ""
    return f"{moved}{PREFIX}{names['black']}_ADD={op}"
