"""Finds constants that half precision cannot hold, and whether a half node reads them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph.nodes import FLOAT, HALF, closure, consumers, is_half

LARGEST = 65504.0  # largest float16
ROUNDS_TO_ZERO = 2.0**-25  # half of the smallest subnormal
_PASS_ON = frozenset(("Cast", "Identity", "Enter", "BroadcastTo", "Fill"))


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A constant that changes when it is rounded to half.

    Attributes:
      layer, source: Keras layer of the constant, and the line of code that created it.
      value, becomes: the element that does not fit, before and after rounding to half.
      problem: ``overflows`` or ``vanishes``.
      half: whether it is rounded to half before a node computes with it.
    """

    layer: str
    value: float
    becomes: float
    problem: str
    half: bool
    source: str


def misfits(nodes: Mapping[str, Any], origins: NodeOrigins) -> List[Misfit]:
    """Return the constants that do not fit float16; those that nodes read in float16 come first."""
    readers = consumers(nodes)
    out = []
    for name, node in nodes.items():
        if node.op != "Const" or node.attr["dtype"].type not in (FLOAT, HALF):
            continue
        values = tf.make_ndarray(node.attr["value"].tensor)
        misfit = _misfit(np.asarray(values, np.float32).ravel())
        if misfit is None:
            continue
        value, problem = misfit
        with np.errstate(over="ignore"):
            becomes = float(np.float16(value))
        half, origin = _read_as_half(nodes, readers, name), origins.of(name)
        # The optimizer's constants stay in float32 and do no harm.
        if half or origin.phase != "update":
            source = origins.source(name)
            out.append(Misfit(origin.layer, value, becomes, problem, half, source))
    return sorted(out, key=lambda m: (not m.half, m.problem))


def _misfit(values: Any) -> Optional[Tuple[float, str]]:
    """Return (element, problem) of the element that fits worst, or None if all fit."""
    numbers = values[np.isfinite(values) & (values != 0)]
    if not numbers.size:
        return None
    largest = float(numbers[np.abs(numbers).argmax()])
    smallest = float(numbers[np.abs(numbers).argmin()])
    if abs(largest) > LARGEST:
        return largest, "overflows"
    return (smallest, "vanishes") if abs(smallest) <= ROUNDS_TO_ZERO else None


def _read_as_half(nodes: Mapping[str, Any], readers: Dict[str, List[str]], name: str) -> bool:
    """Return whether a constant reaches a half node, or a cast to half, unchanged."""

    def passed_on(reached: str) -> List[str]:
        return readers[reached] if reached == name or nodes[reached].op in _PASS_ON else []

    return any(is_half(nodes[target]) for target in closure([name], passed_on))
