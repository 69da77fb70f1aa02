"""The rewrite's lists of op types: whose lists, what the user's environment adds, what they say.

``stock`` are the lists of the TensorFlow that is installed. ``fork`` are those of NVIDIA's
TensorFlow 1.15: Softmax, LogSoftmax, Log and Log1p may be half, Einsum must be.
Source: ``auto_mixed_precision_lists.h`` of NVIDIA/tensorflow, branch r1.15.5+nv23.03.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple

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
    """``fork`` for TensorFlow 1.15, because that is what the container trains with."""
    return "fork" if kind == "tf1" else "stock"


def environment(lists: str, kind: str, is_fork: bool, environ: Mapping[str, str]) -> Dict[str, str]:
    """Variables that make this TensorFlow's pass use ``lists``, the user's own changes kept.

    Args:
      lists: ``fork`` or ``stock``.
      kind: ``tf1`` or ``tf2``, the TensorFlow that runs the pass.
      is_fork: whether it is NVIDIA's 1.15.
      environ: the user's environment. Where it moves an op that ``lists`` moves too, it wins, as
        it would in the other TensorFlow; two lists that then hold the same op are a conflict
        there and here.

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
    # (list, action, ops): what turns the installed lists into the wanted ones.
    there, back = ("ADD", "REMOVE") if lists == "fork" else ("REMOVE", "ADD")
    moves: List[Tuple[str, str, Tuple[str, ...]]] = [
        ("BLACKLIST", back, _FORK_GRAY),
        ("GRAYLIST", there, _FORK_GRAY),
    ]
    moves.append(("WHITELIST", there, _FORK_WHITE))
    changes = {}
    for stem, action, ops in moves:
        opposite = "REMOVE" if action == "ADD" else "ADD"
        users = split(environ.get(f"{PREFIX}{stem}_{action}", ""))
        against = split(environ.get(f"{PREFIX}{stem}_{opposite}", ""))
        wanted = users + [op for op in ops if op not in users and op not in against]
        changes[f"{PREFIX}{stem}_{action}"] = ",".join(wanted)
    return changes


def split(value: str) -> List[str]:
    """``"A,B"`` -> ``["A", "B"]``, as TensorFlow splits it."""
    return [word for word in value.split(",") if word]


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The lists a pass really used, as it wrote them down.

    Attributes:
      white: always half. gray: half between half neighbours. clear: half next to half.
      black: never half, and nothing after them is until the next white op.
    """

    white: FrozenSet[str]
    gray: FrozenSet[str]
    black: FrozenSet[str]
    clear: FrozenSet[str]

    def of(self, op: str) -> str:
        """``white``, ``gray``, ``black``, ``clear``, or ``unlisted`` (never half)."""
        for field in dataclasses.fields(self):
            if op in getattr(self, field.name):
                return field.name
        return "unlisted"


def parse_buckets(text: str) -> Optional[OpLists]:
    """Reads the ``paintbuckets`` file that the pass leaves in its LOG_PATH; None if empty."""
    titles = {
        "WhiteList": "white", "AllowList": "white", "GrayList": "gray", "InferList": "gray",
        "BlackList": "black", "DenyList": "black", "ClearList": "clear",
    }  # fmt: skip
    found: Dict[str, set] = {"white": set(), "gray": set(), "black": set(), "clear": set()}
    current = None
    for line in text.splitlines():
        word = line.strip()
        if word.endswith(":") and word[:-1] in titles:
            current = found[titles[word[:-1]]]
        elif word and current is not None:
            current.add(word)
    if not found["white"]:
        return None
    return OpLists(**{name: frozenset(ops) for name, ops in found.items()})


def keep_in_float32(op: str, kind: str, lists: Optional[OpLists] = None) -> str:
    """The environment assignments after which ``op`` is never converted, for a shell.

    Args:
      op: op type, e.g. ``Mul``.
      kind: ``tf1`` or ``tf2``, where training runs.
      lists: where the op stands now; None = assume gray.
    """
    names = _NAMES[kind]
    now = lists.of(op) if lists is not None else "gray"
    words = []
    if now in ("white", "gray", "clear"):
        words.append(f"{PREFIX}{names[now]}_REMOVE={op}")
    return " ".join(words + [f"{PREFIX}{names['black']}_ADD={op}"])
