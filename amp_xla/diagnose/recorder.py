"""Records each float32 tensor of one run: its range or its histogram of magnitudes.

The recording node is a Python function, because that works inside v1 while loops, whose tensors
cannot be fetched.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Set, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.graph.nodes import FLOAT, by_name, inside_loops, output_types, parse_input

Tensor = Tuple[str, int]  # node name, output
# The nodes that make up a loop must not change; the tensors that it carries are recorded elsewhere.
_LOOP_OPS = frozenset(
    "Enter Exit LoopCond Merge NextIteration RefEnter RefExit RefMerge RefSwitch Switch".split()
)


@dataclasses.dataclass
class Range:
    """The values of a tensor, over all times that it was computed.

    Attributes:
      low, high: smallest and largest finite element; 0 if there are none.
      nan, infinite: number of such elements.
      size: number of elements.
    """

    low: float = 0.0
    high: float = 0.0
    nan: int = 0
    infinite: int = 0
    size: int = 0

    @property
    def finite(self) -> bool:
        """True if there is no NaN and no infinity."""
        return not (self.nan or self.infinite)

    @property
    def largest(self) -> float:
        """The largest magnitude among the finite elements."""
        return max(abs(self.low), abs(self.high))

    def add(self, values: Any) -> None:
        """Add the elements of an array."""
        finite = values[np.isfinite(values)]
        nan = int(np.isnan(values).sum())
        known = [] if self.size == self.nan + self.infinite else [self.low, self.high]
        self.nan += nan
        self.infinite += values.size - finite.size - nan
        self.size += values.size
        if finite.size:
            known += [float(finite.min()), float(finite.max())]
            self.low, self.high = min(known), max(known)

    def __str__(self) -> str:
        text = f"{self.low:.4g} .. {self.high:.4g}"
        counts = [(self.nan, "NaN"), (self.infinite, "infinite")]
        bad = " and ".join(f"{count} {word}" for count, word in counts if count)
        return text + (f", {bad} of {self.size} elements" if bad else "")


class Magnitudes:
    """Histogram of the binary exponents of tensors' elements.

    Attributes:
      counts: int64 [256]; ``counts[e]`` elements had magnitudes in [2**(e - 127), 2**(e - 126));
        ``counts[0]`` are zeros and float32 subnormals, ``counts[255]`` are not finite.
      largest: the largest finite magnitude.
    """

    BIAS = 127

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all counts."""
        self.counts: Any = np.zeros(256, np.int64)
        self.largest = 0.0

    def add(self, values: Any) -> None:
        """Add the elements of a float32 array."""
        # The exponent is the eight bits after the sign bit.
        bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
        exponents = np.bincount((bits << 1) >> 24, minlength=256)
        self.counts += exponents
        finite = values[np.isfinite(values)] if exponents[255] else values
        if finite.size:
            self.largest = max(self.largest, float(finite.max()), -float(finite.min()))

    def merge(self, other: Magnitudes) -> None:
        """Add the counts of another histogram."""
        self.counts = self.counts + other.counts
        self.largest = max(self.largest, other.largest)

    @property
    def share_lost(self) -> float:
        """Share of the non-zero elements that float16 makes zero (below 2**-25)."""
        numbers = int(self.counts[1:].sum())
        return int(self.counts[1 : self.BIAS - 25].sum()) / numbers if numbers else 0.0


def watch(
    graph_def: Any, nodes: Set[str], kind: Callable[[], Any] = Range
) -> Tuple[Any, List[str], Dict[Tensor, Any]]:
    """Add a recording node to each float32 output of ``nodes``.

    Returns:
      The GraphDef with recording nodes; names of operations to run with it; the records, each a
      ``kind()``, filled while it runs. Keep them as long as the graph is run. Records of nodes that
      never run (an untaken branch) stay empty.
    """
    result = tf.GraphDef()
    result.CopyFrom(graph_def)
    loops = inside_loops(by_name(graph_def))
    records: Dict[Tensor, Any] = {}
    targets: List[str] = []
    moved: Dict[Tensor, str] = {}
    watches = []
    for node in graph_def.node:
        if node.name not in nodes or node.op in _LOOP_OPS:
            continue
        for index, dtype in enumerate(output_types(node)):
            if dtype != FLOAT:
                continue
            record = records[node.name, index] = kind()
            name, inside = f"{node.name}/watch_{index}", node.name in loops
            watches.append(_recording_node(name, f"{node.name}:{index}", record, inside))
            if inside:
                moved[node.name, index] = name
            else:
                targets.append(name)
    for node in result.node:
        for position, text in enumerate(node.input):
            node.input[position] = moved.get(parse_input(text), text)
    result.node.extend(watches)
    return result, targets, records


def _recording_node(name: str, source: str, record: Any, passes: bool) -> Any:
    """Build a PyFunc that records a tensor; inside a loop it passes it on, so that it runs."""
    from tensorflow.python.ops import script_ops

    def look(values: Any) -> Any:
        record.add(np.asarray(values))
        return values if passes else ()

    token = script_ops._py_funcs.insert(look)
    record.function = look  # TensorFlow does not own the functions that it calls
    node = tf.NodeDef(name=name, op="PyFunc", input=[source])
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.append(FLOAT)
    node.attr["Tout"].list.SetInParent()
    if passes:
        node.attr["Tout"].list.type.append(FLOAT)
    return node
