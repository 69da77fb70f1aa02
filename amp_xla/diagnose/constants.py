"""Finds constants that half precision cannot hold, and whether a half node reads them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.graph.nodes import FLOAT, HALF, consumers

LARGEST = 65504.0  # largest float16
SMALLEST_NORMAL = 2.0**-14  # below it float16 loses bits
ROUNDS_TO_ZERO = 2.0**-25  # half of the smallest subnormal


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A constant that changes when it is rounded to half.

    Attributes:
      node: name of the Const node.
      value: the largest or the smallest element, whichever does not fit.
      becomes: its value after rounding to half.
      problem: ``overflows``, ``vanishes`` or ``loses bits`` (subnormal).
      used_by: nodes that read it, ``name (type)``.
      half: whether it is rounded to half before one of them reads it.
    """

    node: str
    value: float
    becomes: float
    problem: str
    used_by: Tuple[str, ...]
    half: bool


def misfits(nodes: Mapping[str, Any]) -> List[Misfit]:
    """Return the constants that half cannot hold; those that are rounded come first.

    Args:
      nodes: name -> NodeDef of the rewritten graph.
    """
    readers = consumers(nodes)
    out = []
    for node in nodes.values():
        if node.op != "Const" or node.attr["dtype"].type not in (FLOAT, HALF):
            continue
        values = tf.make_ndarray(node.attr["value"].tensor)
        misfit = _misfit(np.asarray(values, np.float32).ravel())
        if misfit is not None:
            value, problem = misfit
            users, half = _users(nodes, readers, node.name)
            with np.errstate(over="ignore"):
                becomes = float(np.float16(value))
            out.append(Misfit(node.name, value, becomes, problem, tuple(sorted(users)), half))
    return sorted(out, key=lambda m: (not m.half, m.problem, m.node))


def _misfit(values: Any) -> Optional[Tuple[float, str]]:
    """Return (element, problem) of the element that fits worst, or None if all fit."""
    numbers = values[np.isfinite(values) & (values != 0)]
    if not numbers.size:
        return None
    largest = float(numbers[np.abs(numbers).argmax()])
    smallest = float(numbers[np.abs(numbers).argmin()])
    if abs(largest) > LARGEST:
        return largest, "overflows"
    if abs(smallest) <= ROUNDS_TO_ZERO:
        return smallest, "vanishes"
    return (smallest, "loses bits") if abs(smallest) < SMALLEST_NORMAL else None


def _users(
    nodes: Mapping[str, Any], readers: Dict[str, List[str]], name: str
) -> Tuple[Set[str], bool]:
    """Return the nodes that read a constant, and whether it is rounded to half before."""
    users: Set[str] = set()
    half = nodes[name].attr["dtype"].type == HALF
    stack, seen = [name], {name}
    while stack:
        for target in readers[stack.pop()]:
            node = nodes[target]
            half = half or (node.op == "Cast" and node.attr["DstT"].type == HALF)
            if node.op in ("Cast", "Identity", "Enter", "BroadcastTo", "Fill"):
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
            else:
                half = half or node.attr["T"].type == HALF
                users.add(f"{target} ({node.op})")
    return users, half
