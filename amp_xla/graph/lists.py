"""The op lists of the mixed-precision pass: whose they are and what the environment changes.

``stock`` lists are those of the installed TensorFlow. ``fork`` lists are those of NVIDIA's
TensorFlow 1.15: Softmax, LogSoftmax, Log and Log1p may be half, Einsum always is.
Source: ``auto_mixed_precision_lists.h`` of NVIDIA/tensorflow, branch r1.15.5+nv23.03.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, List, Mapping, Optional, Set, Tuple

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


def default_lists(kind: str) -> str:
    """Return ``fork`` for TensorFlow 1.15, because the container trains with it, else ``stock``."""
    return "fork" if kind == "tf1" else "stock"


def environment(lists: str, kind: str, is_fork: bool, environ: Mapping[str, str]) -> Dict[str, str]:
    """Return variables that make this TensorFlow's pass use ``lists``.

    Args:
      lists: ``fork`` or ``stock``.
      kind: ``tf1`` or ``tf2``, the TensorFlow that runs the pass.
      is_fork: whether it is NVIDIA's 1.15.
      environ: the user's environment; an op that it moves stays as the user moved it.

    Raises:
      UnsupportedError: unknown ``lists``, or ``fork`` on TensorFlow 2.
    """
    if lists not in LISTS:
        raise UnsupportedError(f"lists={lists!r} is not known; allowed: {', '.join(LISTS)}")
    if lists == "fork" and kind != "tf1":
        raise UnsupportedError(
            "lists=fork are those of NVIDIA's TensorFlow 1.15, and this is TensorFlow 2, whose own "
            "lists have Softmax and Einsum in half already; allowed here: stock"
        )
    if (lists == "fork") == is_fork:
        return {}
    add, remove = ("ADD", "REMOVE") if lists == "fork" else ("REMOVE", "ADD")
    changes = {}
    for stem, action, ops in (
        ("BLACKLIST", remove, _FORK_GRAY),
        ("GRAYLIST", add, _FORK_GRAY),
        ("WHITELIST", add, _FORK_WHITE),
    ):
        opposite = "REMOVE" if action == "ADD" else "ADD"
        users = split(environ.get(f"{PREFIX}{stem}_{action}", ""))
        against = split(environ.get(f"{PREFIX}{stem}_{opposite}", ""))
        added = [op for op in ops if op not in users and op not in against]
        changes[f"{PREFIX}{stem}_{action}"] = ",".join(users + added)
    return changes


def split(value: str) -> List[str]:
    """Split ``"A,B"`` as TensorFlow does."""
    return [word for word in value.split(",") if word]


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The lists that a pass used, as it wrote them down.

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
    titles = {
        "WhiteList": "white", "AllowList": "white", "GrayList": "gray", "InferList": "gray",
        "BlackList": "black", "DenyList": "black", "ClearList": "clear",
    }  # fmt: skip
    ops: Dict[str, Set[str]] = {"white": set(), "gray": set(), "black": set(), "clear": set()}
    current = None
    for line in text.splitlines():
        word = line.strip()
        if word.endswith(":") and word[:-1] in titles:
            current = ops[titles[word[:-1]]]
        elif word and current is not None:
            current.add(word)
    if not ops["white"]:
        return None
    return OpLists(**{name: frozenset(members) for name, members in ops.items()})


def keep_in_float32(op: str, kind: str, lists: Optional[OpLists] = None) -> str:
    """Return environment assignments, for a shell, after which ``op`` is never converted.

    Args:
      op: op type, e.g. ``Mul``.
      kind: ``tf1`` or ``tf2``, the TensorFlow that trains.
      lists: lists in force; None = assume gray.
    """
    names = _NAMES[kind]
    color = lists.of(op) if lists is not None else "gray"
    words = []
    if color in ("white", "gray", "clear"):
        words.append(f"{PREFIX}{names[color]}_REMOVE={op}")
    return " ".join(words + [f"{PREFIX}{names['black']}_ADD={op}"])
