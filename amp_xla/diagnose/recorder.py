"""Records the range of each float32 tensor of one run.

The recording node is a Python function, because fetched tensors would stay in memory, and those of
a branch that is not taken cannot be fetched.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Collection, Dict, List, Tuple

import numpy as np

from amp_xla.backend import tf
from amp_xla.diagnose.constants import ROUNDS_TO_ZERO
from amp_xla.graph.nodes import FLOAT, by_name, inside_loops, output_types

Tensor = Tuple[str, int]  # node name, output


@dataclasses.dataclass
class Range:
    """The values of a tensor, over all times that it was computed.

    Attributes:
      low, high: smallest and largest finite element; 0 if there are none.
      nan, infinite: number of elements that are NaN, and that are infinite.
      nonzero: number of elements that are not zero.
      vanishing: number of nonzero elements that are zero in float16.
      size: number of elements.
    """

    low: float = 0.0
    high: float = 0.0
    nan: int = 0
    infinite: int = 0
    nonzero: int = 0
    vanishing: int = 0
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
        nonzero = np.count_nonzero(values)
        known = [] if self.size == self.nan + self.infinite else [self.low, self.high]
        self.nan += nan
        self.infinite += values.size - finite.size - nan
        self.nonzero += nonzero
        small = np.count_nonzero(np.abs(finite) <= ROUNDS_TO_ZERO)
        self.vanishing += small - (values.size - nonzero)
        self.size += values.size
        if finite.size:
            known += [float(finite.min()), float(finite.max())]
            self.low, self.high = min(known), max(known)

    def __str__(self) -> str:
        text = f"{self.low:.4g} .. {self.high:.4g}"
        counts = [(self.nan, "NaN"), (self.infinite, "infinite")]
        bad = " and ".join(f"{count} {word}" for count, word in counts if count)
        return text + (f", {bad} of {self.size} elements" if bad else "")


def watch(graph_def: Any, names: Collection[str]) -> Tuple[Any, List[str], Dict[Tensor, Range]]:
    """Add a recording node to each float32 output of the nodes ``names`` outside v1 while loops.

    Returns:
      The GraphDef with recording nodes; the names of these nodes, which must be run; the records,
      which must exist as long as the graph runs. Records of nodes that never run (a branch that is
      not taken) stay empty.
    """
    result = tf.GraphDef()
    result.CopyFrom(graph_def)
    loops = inside_loops(by_name(graph_def))
    records: Dict[Tensor, Range] = {}
    watches = []
    for node in graph_def.node:
        if node.name in names and node.name not in loops:
            for index, dtype in enumerate(output_types(node)):
                if dtype == FLOAT:
                    record = records[node.name, index] = Range()
                    watches.append(_recording_node(node.name, index, record))
    result.node.extend(watches)
    return result, [node.name for node in watches], records


def _recording_node(name: str, index: int, record: Any) -> Any:
    """Build a PyFunc that records an output of a node."""
    from tensorflow.python.ops import script_ops

    def look(values: Any) -> Any:
        record.add(np.asarray(values))
        return ()

    token = script_ops._py_funcs.insert(look)
    record.function = look  # TensorFlow holds no reference to it
    node = tf.NodeDef(name=f"{name}/watch_{index}", op="PyFunc", input=[f"{name}:{index}"])
    node.attr["token"].s = token.encode()
    node.attr["Tin"].list.type.append(FLOAT)
    node.attr["Tout"].list.SetInParent()
    return node
