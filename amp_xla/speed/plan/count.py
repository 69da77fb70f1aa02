"""Counts the work of a training step: matrix products, bytes of other operations, parameters.

All counts are of one micro-batch on one GPU. They come from the graph after the mixed-precision
pass; bytes are counted twice, in the dtypes of this graph and in float32.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from amp_xla.diagnose import emulate
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph import nodes, shapes, training_graph, virtual_gpu
from amp_xla.graph.recompute import SCOPE
from amp_xla.speed.plan.forecast import Product, Traffic, Work

_WIDTH = {nodes.FLOAT: 4, nodes.HALF: 2, nodes.BFLOAT16: 2}  # other dtypes are not counted
# Their result shares their input's memory.
_ALIASES = frozenset("Identity IdentityN ExpandDims Squeeze StopGradient Bitcast Reshape".split())
_REDUCTIONS = frozenset("Sum Mean Max Softmax LogSoftmax BiasAddGrad L2Loss".split())
_COPY = re.compile(rf"(?:^|/){SCOPE}/.*(Transformer-\d+)-")  # of a recomputed layer
Output = Tuple[str, int]  # node name, output index


def count(model: Any, batch: Optional[Sequence[Any]] = None) -> Work:
    """Count the work of a training step.

    Args:
      model: a compiled Keras model, a ``Job`` or a ``TrainStep``.
      batch: as for ``amp_xla.diagnose.inspect``; without it, 32 rows of 128 tokens.

    Raises:
      PassFailedError: the mixed-precision pass failed.
    """
    training = training_graph.view(model)
    feeds = training.feed_shapes(batch)
    rewritten = virtual_gpu.rewrite(training, training.fetches).graph_def
    float32 = emulate.tensor_cores(rewritten, rounds=False)
    sizes = shapes.static_shapes(float32, training.fetches, feeds)
    variables = nodes.by_name(training.graph.as_graph_def())
    trained = [variables[name].attr["shape"].shape.dim for name, _ in training.gradients]
    parameters = sum(np.prod([d.size for d in dims], dtype=np.float64) for dims in trained)
    samples = max((shape[0] for shape in feeds.values() if shape), default=1)
    graph = _Graph(rewritten, sizes, NodeOrigins(training))
    return Work(
        samples, graph.products(), *graph.traffic(), graph.kept(), float(parameters), len(trained)
    )


class _Graph:
    """The rewritten graph of a step, without the update."""

    def __init__(
        self, graph_def: Any, sizes: Mapping[str, List[shapes.Shape]], origins: NodeOrigins
    ) -> None:
        self._nodes = nodes.by_name(graph_def)
        self._sizes = sizes
        self._flops, _ = shapes.matmul_flops(graph_def, sizes)
        self._phases = {name: origins.of(name).phase for name in self._nodes}

    def products(self) -> List[Product]:
        """Return the matrix products; equal ones are added up to one ``Product``."""
        found: Counter = Counter()
        for name, flops in self._flops.items():
            node = self._nodes[name]
            inputs = [nodes.parse_input(text) for text in node.input if text[0] != "^"]
            elements = sum(self._elements(output) for output in (*inputs, (name, 0)))
            found[float(flops), elements, nodes.has_type(node, nodes.HALF)] += 1
        return [Product(f * n, e * n, half) for (f, e, half), n in found.items()]

    def traffic(self) -> Tuple[Traffic, Traffic]:
        """Return the memory traffic outside matrix products: first unfused, then fused."""
        unfused: List[Output] = []
        fused: Set[Output] = set()
        for name, node in self._nodes.items():
            if self._phases[name] == "update" or node.op in nodes.SHAPES or node.op in _ALIASES:
                continue
            read = [output for output in self._memory_read(node) if self._is_activation(output)]
            if node.op in nodes.MATMULS:
                fused.update(read)
                fused.add((name, 0))
                continue
            outputs = ((name, index) for index in range(len(nodes.output_types(node))))
            written = [output for output in outputs if self._is_activation(output)]
            unfused += [*read, *written]
            if node.op in _REDUCTIONS:
                fused.update(written)
            fused.update(o for o in read if self._phases[o[0]] != self._phases[name])
        # A fused tensor is written once and read once.
        return self._bytes(unfused), Traffic(*(2 * x for x in self._bytes(fused)))

    def kept(self) -> float:
        """Return the bytes of the activations that the backward pass reads, in float32.

        If layers are recomputed, the bytes of the largest recomputed layer are added: it is in
        memory again.
        """
        kept: Dict[str, Set[Output]] = {"": set()}
        for name, node in self._nodes.items():
            if self._phases[name] != "backward" or node.op in nodes.SHAPES or node.op in _ALIASES:
                continue
            for output in filter(self._is_activation, self._memory_read(node)):
                copied = _COPY.search(output[0])
                if self._phases[output[0]] == "forward":
                    kept[""].add(output)
                elif copied and not _COPY.search(name):
                    kept.setdefault(copied.group(1), set()).add(output)
        forward, *again = (self._bytes(outputs).full for outputs in kept.values())
        return forward + max(again, default=0.0)

    def _memory_read(self, node: Any) -> List[Output]:
        """Return the outputs that a node reads; aliases such as ``Reshape`` are followed back."""
        found = []
        for name, index in map(nodes.parse_input, node.input):
            while index >= 0 and name in self._nodes and self._nodes[name].op in _ALIASES:
                position = index if self._nodes[name].op == "IdentityN" else 0
                name, index = nodes.parse_input(self._nodes[name].input[position])
            if index >= 0 and name in self._nodes:
                found.append((name, index))
        return found

    def _is_activation(self, output: Output) -> bool:
        """Return whether an output is neither a weight nor a constant."""
        node = self._nodes[output[0]]
        if node.op == "Cast":
            return any(self._is_activation(source) for source in self._memory_read(node))
        return node.op not in ("Const", "VarHandleOp", "ReadVariableOp", "VariableV2")

    def _elements(self, output: Output) -> float:
        known = self._sizes.get(output[0], [])[output[1] : output[1] + 1]
        return float(sum(np.prod(s, dtype=np.float64) for s in known if s is not None))

    def _bytes(self, outputs: Collection[Output]) -> Traffic:
        """Return the outputs' bytes under amp and in float32; there a cast counts as its input."""
        full: List[Output] = []
        for name, index in outputs:
            while nodes.cast_source(name) != name:
                name, index = nodes.parse_input(self._nodes[name].input[0])
            full.append((name, index))
        full = list(set(full)) if isinstance(outputs, set) else full
        amp = sum(self._width(output) * self._elements(output) for output in outputs)
        wide = sum(4 * self._elements(output) for output in full if self._width(output))
        return Traffic(amp, wide)

    def _width(self, output: Output) -> int:
        types = nodes.output_types(self._nodes[output[0]])
        return _WIDTH.get(types[output[1]], 0) if output[1] < len(types) else 0
