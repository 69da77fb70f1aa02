"""Sees every float32 tensor of one run: its range, and what in it is not finite.

The watching node is a Python function: it works inside v1 while loops, whose tensors cannot be
fetched, and takes no graph of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Set, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.rewrite.nodes import FLOAT, by_name, inside_loops, output_types, parse_input

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


class Recorder:
    """Ranges of the tensors of watched graphs; keeps its functions alive as long as itself."""

    def __init__(self) -> None:
        self._functions: List[Callable] = []
        self._tokens: List[str] = []

    def watch(self, graph_def: Any, nodes: Set[str]) -> Tuple[Any, List[str], Dict[Tensor, Range]]:
        """Adds a watch to every float32 output of ``nodes``.

        Args:
          graph_def: not changed.
          nodes: names of nodes whose outputs are seen.

        Returns:
          The watched GraphDef; names of operations to run along; the ranges, filled while it
          runs. What never ran (the other branch of a condition) keeps size 0.
        """
        result = tf.GraphDef()
        result.CopyFrom(graph_def)
        loops = inside_loops(by_name(graph_def))
        ranges: Dict[Tensor, Range] = {}
        targets: List[str] = []
        moved: Dict[Tensor, str] = {}
        watches = []
        for node in graph_def.node:
            if node.name not in nodes or node.op in _PLUMBING:
                continue
            for index, dtype in enumerate(output_types(node)):
                if dtype != FLOAT:
                    continue
                seen = ranges[node.name, index] = Range()
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
        return result, targets, ranges

    def _node(self, name: str, source: str, seen: Range, passes: bool) -> Any:
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
