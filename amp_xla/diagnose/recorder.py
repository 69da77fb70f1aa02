"""Sees every float32 tensor of one run: its range or its histogram, what in it is not finite.

The watching node is a Python function: it works inside v1 while loops, whose tensors cannot be
fetched, and takes no graph of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Set, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.graph.nodes import FLOAT, by_name, inside_loops, output_types, parse_input

Tensor = Tuple[str, int]  # node name, output
# A loop's plumbing must stay as it is; what it carries is watched where it is computed.
_PLUMBING = frozenset(
    "Enter Exit LoopCond Merge NextIteration RefEnter RefExit RefMerge RefSwitch Switch".split()
)


@dataclasses.dataclass
class Range:
    """What a tensor held, over all times that it was computed.

    Attributes:
      low, high: of the finite elements; 0 where there are none.
      nan, infinite: numbers of such elements.
      size: elements.
    """

    low: float = 0.0
    high: float = 0.0
    nan: int = 0
    infinite: int = 0
    size: int = 0

    @property
    def finite(self) -> bool:
        """No NaN and no infinity."""
        return not (self.nan or self.infinite)

    @property
    def largest(self) -> float:
        """The largest magnitude among the finite elements."""
        return max(abs(self.low), abs(self.high))

    def add(self, values: Any) -> None:
        """Takes in one more array."""
        if not values.size:
            return
        # Both propagate NaN, and an infinity is an extreme: two passes settle the usual case.
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            finite = values[np.isfinite(values)]
            nan = int(np.isnan(values).sum())
            self.nan += nan
            self.infinite += values.size - finite.size - nan
            low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        self.low = float(low) if not self.size else min(self.low, float(low))
        self.high = float(high) if not self.size else max(self.high, float(high))
        self.size += values.size


class Magnitudes:
    """How large the elements of tensors were, by their binary exponent.

    Attributes:
      counts: int64 [256]; ``counts[e]`` elements had magnitudes in [2**(e - 127), 2**(e - 126));
        ``counts[0]`` are zeros and float32's own subnormals, ``counts[255]`` are not finite.
      largest: the largest finite magnitude.
    """

    BIAS = 127

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.counts: Any = np.zeros(256, np.int64)
        self.largest = 0.0

    def add(self, values: Any) -> None:
        """Takes in one more float32 array."""
        bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
        # The sign away, what is left orders like the magnitudes; the exponent is on top.
        exponents = np.bincount((bits << 1) >> 24, minlength=256)
        self.counts += exponents
        if exponents[255]:
            bits = bits[(bits << 1) >> 24 != 255]
        if bits.size:
            high = np.array([(bits << 1).max() >> 1], np.uint32).view(np.float32)
            self.largest = max(self.largest, float(high[0]))

    def merge(self, other: Magnitudes) -> None:
        """Takes in all of another."""
        self.counts = self.counts + other.counts
        self.largest = max(self.largest, other.largest)

    @property
    def numbers(self) -> int:
        """Elements that are not zero, NaN and infinities included."""
        return int(self.counts[1:].sum())

    @property
    def lost(self) -> int:
        """Elements that are not zero and that float16 makes zero, those near 2**-25 rounded up."""
        return int(self.counts[1 : self.BIAS - 25].sum())

    @property
    def overflowing(self) -> int:
        """Elements of 2**16 and above, and those that are not finite."""
        return int(self.counts[self.BIAS + 16 :].sum())


class Recorder:
    """What the tensors of watched graphs held; its functions live as long as itself.

    Args:
      kind: ``Range`` or ``Magnitudes``.
    """

    def __init__(self, kind: Callable[[], Any] = Range) -> None:
        self._kind = kind
        self._functions: List[Callable] = []
        self._tokens: List[str] = []

    def watch(self, graph_def: Any, nodes: Set[str]) -> Tuple[Any, List[str], Dict[Tensor, Any]]:
        """Adds a watch to every float32 output of ``nodes``.

        Args:
          graph_def: not changed.
          nodes: names of nodes whose outputs are seen.

        Returns:
          The watched GraphDef; names of operations to run along; what was seen, filled while it
          runs. What never ran (the other branch of a condition) stays empty.
        """
        result = tf.GraphDef()
        result.CopyFrom(graph_def)
        loops = inside_loops(by_name(graph_def))
        found: Dict[Tensor, Any] = {}
        targets: List[str] = []
        moved: Dict[Tensor, str] = {}
        watches = []
        for node in graph_def.node:
            if node.name not in nodes or node.op in _PLUMBING:
                continue
            for index, dtype in enumerate(output_types(node)):
                if dtype != FLOAT:
                    continue
                seen = found[node.name, index] = self._kind()
                name = f"{node.name}/watch_{index}"
                inside = node.name in loops
                watches.append(self._node(name, f"{node.name}:{index}", seen, inside))
                if inside:
                    moved[node.name, index] = name
                else:
                    targets.append(name)
        for node in result.node:
            for position, text in enumerate(node.input):
                replacement = moved.get(parse_input(text))
                if replacement is not None:
                    node.input[position] = replacement
        result.node.extend(watches)
        return result, targets, found

    def _node(self, name: str, source: str, seen: Any, passes: bool) -> Any:
        """A PyFunc that looks at a tensor; inside a loop it hands it on, to be run at all."""
        from tensorflow.python.ops import script_ops

        def look(values: Any) -> Any:
            seen.add(np.asarray(values))
            return values if passes else ()

        token = script_ops._py_funcs.insert(look)
        self._functions.append(look)
        self._tokens.append(token)
        node = tf.NodeDef(name=name, op="PyFunc", input=[source])
        node.attr["token"].s = token.encode()
        node.attr["Tin"].list.type.append(FLOAT)
        node.attr["Tout"].list.SetInParent()
        if passes:
            node.attr["Tout"].list.type.append(FLOAT)
        return node
