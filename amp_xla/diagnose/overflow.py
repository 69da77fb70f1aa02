"""Finds the node that makes the loss or the gradients of a batch non-finite.

The batch is replayed on a CPU with every tensor recorded, forward and backward: once as mixed
precision computes it, once in float32. A tensor is bad if it is not finite, or if it is rounded to
float16 and too large for float16. The cause is the first node, in the order in which the model was
built, that turns good tensors into a bad one. Bad tensors must lead from this node to the loss or
a gradient, and the node's result must be good in float32. A node turns good tensors bad if

- its result is infinite or too large for float16, and none of its inputs is;
- it reads an input that depends on weights (a mask does not), and rounding to float16 makes this
  input, or a factor that multiplies it, infinite;
- its result is NaN, and no input is.

A mask of -inf is no cause, because its softmax is 0, as it should be. A logarithm of zero that the
loss discards is no cause either. A multiplication of infinity by zero is a cause.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from amp_xla.diagnose import emulate
from amp_xla.diagnose.finding import Finding, Input, remedies
from amp_xla.diagnose.graph_copies import LARGEST, OVERFLOW, GraphCopies, Tensor, ValueRange
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.graph import nodes, virtual_gpu
from amp_xla.graph.training_graph import TrainingGraph

_PRODUCTS = frozenset(("Mul", "RealDiv", *nodes.MATMULS))


class _Replay(NamedTuple):
    """One recorded run; ``rounded`` are the nodes whose result is rounded to half."""

    nodes: Mapping[str, Any]
    ends: Sequence[Tensor]
    ranges: Mapping[Tensor, ValueRange]
    rounded: Set[str]
    loss: float
    scale: float

    def bad(self, tensor: Tensor) -> bool:
        """Return whether a tensor is not finite, or rounding to half makes it infinite."""
        values = self.ranges.get(tensor)
        if values is None or not values.size:
            return False
        overflows = tensor[0] in self.rounded and values.largest >= OVERFLOW
        return overflows or not values.finite

    def may_be_bad(self, tensor: Tensor) -> bool:
        """Return whether a tensor is bad, or is a float without a record (as in a loop)."""
        if tensor in self.ranges:
            return self.bad(tensor)
        types = nodes.output_types(self.nodes[tensor[0]])[tensor[1] :]
        return not types or types[0] not in nodes.INTEGERS

    def bad_ends(self) -> List[Tensor]:
        """Return the bad tensors among the loss and the gradients."""
        return [tensor for tensor in self.ends if self.bad(tensor)]

    def bad_ancestors(self) -> Set[Tensor]:
        """Return ``bad_ends`` and the bad tensors from which they are computed."""

        def sources(tensor: Tensor) -> List[Tensor]:
            inputs = map(nodes.parse_input, self.nodes[tensor[0]].input)
            read = [t for t in inputs if t[1] >= 0 and t[0] in self.nodes]
            return [t for t in read if self.may_be_bad(t)]

        return {t for t in nodes.closure(self.bad_ends(), sources) if self.bad(t)}

    def inputs(self, node: Any) -> List[Input]:
        """Return the recorded inputs of a node, before the casts that the pass inserted."""
        inputs = []
        for text in node.input:
            tensor, to_half = nodes.parse_input(text), False
            while tensor[0] in self.nodes and nodes.cast_source(tensor[0]) != tensor[0]:
                cast = self.nodes[tensor[0]]
                to_half = to_half or cast.attr["DstT"].type == nodes.HALF
                tensor = nodes.parse_input(cast.input[0])
            values = self.ranges.get(tensor)
            if values is not None:
                inputs.append(Input(tensor[0], self.nodes[tensor[0]].op, values, to_half))
        return inputs

    def turns_bad(self, tensor: Tensor, trained: Set[str]) -> bool:
        """Return whether the node of a bad tensor made it bad, rather than an earlier node.

        ``trained``: names of the nodes that depend on weights.
        """
        name, values = tensor[0], self.ranges[tensor]
        if nodes.cast_source(name) != name:
            return False  # the node that reads it is reported: its input is beyond float16
        node = self.nodes[name]
        inputs = self.inputs(node)
        if values.nan:
            return not any(i.range.nan for i in inputs)
        lost = [i for i in inputs if i.lost]
        if any(i.name in trained for i in lost):
            return True
        if lost and values.infinite and name in trained and node.op in _PRODUCTS:
            return True
        return all(i.range.finite and not i.lost for i in inputs)

    def largest_constant(self, tensor: Tensor) -> float:
        """Return the largest constant from which a tensor is computed; 0 if there is none.

        Only paths through large or non-finite tensors are followed.
        """

        def large_sources(current: Tensor) -> List[Tensor]:
            sources = map(nodes.parse_input, self.nodes[current[0]].input)
            recorded = [(t, self.ranges[t]) for t in sources if t in self.ranges]
            return [t for t, values in recorded if values.largest > LARGEST or not values.finite]

        behind = nodes.closure([tensor], large_sources)
        constants = [t for t in behind if self.nodes[t[0]].op == "Const"]
        return max((self.ranges[t].largest for t in constants), default=0.0)


def rewrite(training: TrainingGraph) -> virtual_gpu.Rewritten:
    """Run the mixed-precision pass on what a replay runs: loss, gradients, loss scale."""
    return virtual_gpu.rewrite(training, [*training.ends, training.loss_scale])


def replay(
    training: TrainingGraph,
    rewritten: Optional[virtual_gpu.Rewritten],
    values: Mapping[str, Any],
    batch: Sequence[Any],
    step: int,
    scale: Optional[float] = None,
) -> Optional[Finding]:
    """Replay one batch; return its first non-finite node, None if loss and gradients are finite.

    Args:
      rewritten: result of ``rewrite``; None if the pass did not run: the graph is replayed as it
        is, in float32 or as a Keras policy made it.
      values: variable op name -> value: the weights and loss scale of the failed step.
      batch, step: as for ``GraphCopies.run``.
      scale: loss scale of the failed step; None = the loss scale in ``values``.
    """
    if rewritten is None:
        original = training.export([*training.ends, training.loss_scale])
    else:
        original = rewritten.graph_def
    graph = nodes.by_name(original)

    def run(rounds: bool) -> _Replay:
        graph_def = emulate.tensor_cores(original, rounds)
        with GraphCopies(training, graph_def) as copies:
            copies.add("replay", graph_def, "replay")
            watched = nodes.ancestors(graph, training.ends)
            recordings, ranges = copies.record("replay", graph_def, watched)
            copies.load("replay", values)
            current = copies.loss_scale("replay", batch, step)
            used = current if scale is None else scale
            fetches = [f"replay/{training.loss}:0", *recordings]
            loss = float(copies.run(fetches, batch, step, used / current)[0])
        ends = [(name, 0) for name in training.ends]
        return _Replay(graph, ends, ranges, emulate.rounded(graph_def), loss, used)

    mixed = run(rounds=True)
    if not mixed.bad_ends():
        return None
    plain = run(rounds=False) if nodes.half_nodes(original) else mixed
    return _finding(training, plain, mixed, rewritten.lists if rewritten else None)


def _finding(
    training: TrainingGraph, plain: _Replay, mixed: _Replay, lists: Optional[virtual_gpu.Colors]
) -> Finding:
    """Report the first node that fails, in the order in which the model was built."""
    # Nodes that depend on a variable: not masks, not constants.
    variables = [name for name, node in mixed.nodes.items() if node.op == "VarHandleOp"]
    trained = nodes.closure(variables, nodes.consumers(mixed.nodes).__getitem__)
    origins = NodeOrigins(training)
    bad = mixed.bad_ancestors()
    turned = [t for t in bad if mixed.turns_bad(t, trained)]
    suspects: Iterable[Tensor] = [t for t in turned if not plain.bad(t)]
    if not suspects and not plain.bad_ends():
        # Float32 is finite, so mixed precision is the cause, and one of these is the node.
        suspects = [t for t in bad if not plain.bad(t)]
    float32_too = not suspects
    suspects = suspects or turned or bad
    tensor = min(suspects, key=lambda t: (origins.position(t[0]), t[0]))
    name = tensor[0]
    node, origin, values = mixed.nodes[name], origins.of(name), mixed.ranges[tensor]
    half, inputs = name in mixed.rounded, tuple(mixed.inputs(node))
    finding = Finding(
        node=name,
        op=node.op,
        layer=origin.layer,
        phase=origin.phase,
        half=half or nodes.has_type(node, nodes.HALF),
        output=values,
        inputs=inputs,
        source=origins.source(name),
        problem=_problem(values, half, inputs, float32_too),
        float32_too=float32_too,
        float32_loss=plain.loss,
        half_loss=mixed.loss,
        loss_scale=mixed.scale,
    )
    layer, constant = training.layers.get(origin.layer), mixed.largest_constant(tensor)
    return dataclasses.replace(finding, remedies=remedies(finding, layer, constant, lists))


def _problem(values: ValueRange, half: bool, inputs: Tuple[Input, ...], float32_too: bool) -> str:
    if float32_too:
        return "not finite in float32 either, so mixed precision is not the cause"
    if half and values.finite:
        return f"its result reaches {values.largest:.4g}, and float16 ends at {LARGEST:g}"
    lost = [i for i in inputs if i.lost]
    if lost:
        what = "a constant" if lost[0].op == "Const" else "an input"
        low, high = lost[0].range.low, lost[0].range.high
        what = f"{what} of {low if abs(low) > abs(high) else high:.4g} is infinite in float16"
    elif any(i.range.infinite for i in inputs):
        what = "an input is infinite"
    else:
        return "its result is not finite"
    if lost and not values.nan:
        return f"{what}, and so is the result"
    return f"{what}, and infinity times zero, or minus infinity, is not a number"
