"""Constants that half precision cannot hold, and whether a half node reads them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Set, Tuple

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
      value: the offending element, the largest or the smallest.
      becomes: what half makes of it.
      problem: ``overflows``, ``vanishes`` or ``loses bits`` (subnormal).
      used_by: ops that read it, ``name (type)``.
      half: whether it is rounded to half on its way to one of them.
    """

    node: str
    value: float
    becomes: float
    problem: str
    used_by: Tuple[str, ...]
    half: bool


def misfits(nodes: Mapping[str, Any]) -> List[Misfit]:
    """All constants of a rewritten graph that don't fit; those on a half path come first.

    Args:
      nodes: name -> NodeDef of the rewritten graph.
    """
    outgoing = consumers(nodes)
    found = []
    for node in nodes.values():
        if node.op != "Const" or node.attr["dtype"].type not in (FLOAT, HALF):
            continue
        values = tf.make_ndarray(node.attr["value"].tensor)
        offence = _offence(np.asarray(values, np.float32).ravel())
        if offence is not None:
            users, half = _users(nodes, outgoing, node.name)
            value, problem = offence
            with np.errstate(over="ignore"):
                becomes = float(np.float16(value))
            found.append(Misfit(node.name, value, becomes, problem, tuple(sorted(users)), half))
    return sorted(found, key=lambda m: (not m.half, m.problem, m.node))


def _offence(values: Any) -> Any:
    finite = np.abs(values[np.isfinite(values) & (values != 0)])
    if not finite.size:
        return None
    largest, smallest = finite.max(), finite.min()
    if largest > LARGEST:
        return float(values[np.abs(values) == largest][0]), "overflows"
    if smallest <= ROUNDS_TO_ZERO:
        return float(values[np.abs(values) == smallest][0]), "vanishes"
    if smallest < SMALLEST_NORMAL:
        return float(values[np.abs(values) == smallest][0]), "loses bits"
    return None


def _users(nodes: Mapping[str, Any], outgoing: Dict[str, List], name: str) -> Tuple[Set[str], bool]:
    """Who reads a constant, through casts and renamings; and whether a cast to half is on the way.

    A half constant was half before it was read.
    """
    users: Set[str] = set()
    half = nodes[name].attr["dtype"].type == HALF
    stack, seen = [name], {name}
    while stack:
        for target, _ in outgoing[stack.pop()]:
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
