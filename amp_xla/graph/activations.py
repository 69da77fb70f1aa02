"""Counts the bytes that a training step keeps from its forward to its backward pass."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Set, Tuple

from amp_xla.backend import tf
from amp_xla.graph.nodes import SHAPES, closure, inserted_cast, output_types, parse_input
from amp_xla.graph.recompute import copied_layer
from amp_xla.graph.shapes import Shape, element_bytes
from amp_xla.graph.training_graph import GRADIENT_SEED

# Their result shares their input's memory.
_ALIASES = frozenset(
    ("Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "Bitcast")
)
Output = Tuple[str, int]  # node name, output index


def activation_bytes(
    nodes: Mapping[str, Any], shapes: Mapping[str, List[Shape]]
) -> Tuple[int, int]:
    """Count the activations of a graph that ``TrainingGraph.export`` made.

    An operation belongs to the backward pass if it depends on a gradient. A factor of a derivative
    that does not is computed in the forward pass and kept instead of its inputs. The graph may be
    that before or after mixed precision, whose casts may be missing in ``shapes``.

    Returns:
      Bytes kept from the forward to the backward pass, including the last layer's; bytes held at
      once by the backward pass for the largest layer that it recomputes.
    """
    readers: Dict[str, List[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for text in node.input:
            readers.setdefault(parse_input(text)[0], []).append(node.name)
    backward = closure([GRADIENT_SEED], readers.__getitem__)
    fed = [name for name, node in nodes.items() if node.op.startswith("Placeholder")]
    forward = closure(fed, readers.__getitem__) - backward
    saved: Set[Output] = set()
    recomputed: Dict[int, Set[Output]] = {}
    for node in (nodes[name] for name in backward):
        if node.op in SHAPES:
            continue
        for source, index in _memory_read(nodes, node.input):
            layer = copied_layer(source)
            if source in forward:
                saved.add((source, index))
            elif layer is not None and copied_layer(node.name) is None:
                recomputed.setdefault(layer, set()).add((source, index))

    def size(outputs: Iterable[Output]) -> int:
        return sum(_bytes(nodes, shapes, output) for output in outputs)

    return size(saved), max(map(size, recomputed.values()), default=0)


def _memory_read(nodes: Mapping[str, Any], inputs: Iterable[str]) -> Iterable[Output]:
    """Yield the outputs whose memory a node reads."""
    for text in inputs:
        name, index = parse_input(text)
        while index >= 0 and name in nodes and nodes[name].op in _ALIASES:
            position = index if nodes[name].op == "IdentityN" else 0
            name, index = parse_input(nodes[name].input[position])
        if index >= 0 and name in nodes:
            yield name, index


def _bytes(nodes: Mapping[str, Any], shapes: Mapping[str, List[Shape]], output: Output) -> int:
    name, index = output
    types = output_types(nodes[name])
    width = tf.as_dtype(types[index]).size if index < len(types) else 4
    while inserted_cast(name):
        name, index = parse_input(nodes[name].input[0])
    return element_bytes(shapes.get(name, [])[index : index + 1], width)
