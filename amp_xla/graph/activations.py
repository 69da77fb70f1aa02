"""The bytes that a training step keeps from its forward to its backward pass."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Set, Tuple

from amp_xla.backend import tf
from amp_xla.graph.nodes import SHAPES, closure, inserted_cast, output_types, parse_input
from amp_xla.graph.recompute import copied_layer
from amp_xla.graph.shapes import Shape, element_bytes
from amp_xla.graph.training_graph import GRADIENT_SEED

# Their result is their input's memory; the batch normal form of what they are given.
_ALIASES = frozenset(
    ("Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "Bitcast")
)
Output = Tuple[str, int]  # a node, and which of its outputs


class Kept(NamedTuple):
    """``forward``: bytes kept from the forward pass, the last layer's included.

    ``again``: bytes that the backward pass computes again and holds at once, of the largest layer.
    """

    forward: int
    again: int


def kept(nodes: Mapping[str, Any], shapes: Mapping[str, List[Shape]]) -> Kept:
    """What is kept of a graph that ``TrainingGraph.export`` made.

    An operation belongs to the backward pass where it waits for a gradient: a derivative's factor
    that does not is computed at once, and kept in place of what it is made of.

    Args:
      nodes: by name, of the whole training step, before or after mixed precision.
      shapes: node name -> shapes of its outputs; casts that mixed precision adds need not be there.
    """
    readers: Dict[str, List[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for text in node.input:
            readers.setdefault(parse_input(text)[0], []).append(node.name)
    late = closure([GRADIENT_SEED], readers.__getitem__)
    fed = [name for name, node in nodes.items() if node.op.startswith("Placeholder")]
    of_batch = closure(fed, readers.__getitem__)
    forward: Set[Output] = set()
    again: Dict[int, Set[Output]] = {}
    for node in (nodes[name] for name in late):
        if node.op in SHAPES:
            continue
        for source, index in _read(nodes, node.input):
            copied = copied_layer(source)
            if source in of_batch - late:
                forward.add((source, index))
            elif copied is not None and copied_layer(node.name) is None:
                again.setdefault(copied, set()).add((source, index))

    def size(outputs: Iterable[Output]) -> int:
        return sum(_bytes(nodes, shapes, output) for output in outputs)

    return Kept(size(forward), max(map(size, again.values()), default=0))


def _read(nodes: Mapping[str, Any], inputs: Iterable[str]) -> Iterable[Output]:
    """Where the memory is that a node reads."""
    for text in inputs:
        name, index = parse_input(text)
        while index >= 0 and name in nodes and nodes[name].op in _ALIASES:
            own = index if nodes[name].op == "IdentityN" else 0
            name, index = parse_input(nodes[name].input[own])
        if index >= 0 and name in nodes:
            yield name, index


def _bytes(nodes: Mapping[str, Any], shapes: Mapping[str, List[Shape]], output: Output) -> int:
    name, index = output
    types = output_types(nodes[name])
    width = tf.as_dtype(types[index]).size if index < len(types) else 4
    while inserted_cast(name):
        name, index = parse_input(nodes[name].input[0])
    return element_bytes(shapes.get(name, [])[index : index + 1], width)
