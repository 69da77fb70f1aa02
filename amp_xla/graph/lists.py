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

LISTS: Tuple[str, ...] = ("fork", "stock")
PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"

# TensorFlow 2.4 renamed the lists; 1.15 ignores the new names.
_NAMES = {
    "tf1": {"white": "WHITELIST", "gray": "GRAYLIST", "black": "BLACKLIST", "clear": "CLEARLIST"},
    "tf2": {"white": "ALLOWLIST", "gray": "INFERLIST", "black": "DENYLIST", "clear": "CLEARLIST"},
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
    ops: Dict[str, Set[str]] = {color: set() for color in _NAMES["tf1"]}
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
    names = _NAMES[backend.kind()]
    color = lists.of(op)
    words = []
    if color in ("white", "gray", "clear"):
        words.append(f"{PREFIX}{names[color]}_REMOVE={op}")
    return " ".join(words + [f"{PREFIX}{names['black']}_ADD={op}"])
