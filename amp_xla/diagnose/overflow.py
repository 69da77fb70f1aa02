"""Finds the node at which a batch stops being finite.

The batch is replayed on a CPU with every tensor recorded, forward and backward: as mixed precision
computes it, and in float32. The cause is the first node, in the order in which the model was
built, that turns good numbers into bad ones, from which non-finite numbers reach the loss or a
gradient, and which is good in float32. A node turns bad if

- its result is beyond float16, though its inputs are not;
- an input that training changes (not a mask) is beyond float16, or the number it multiplies;
- its result is NaN, though its inputs are not.

An infinite mask, or the logarithm of zero that a loss discards, is none of these: a softmax of
-inf is right. The multiplication by zero after it is not.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from amp_xla.diagnose import emulate
from amp_xla.diagnose.constants import LARGEST
from amp_xla.diagnose.finding import OVERFLOW, Finding, Input, remedies
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.diagnose.recorder import Range, Tensor, watch
from amp_xla.diagnose.stage import Stage
from amp_xla.graph import nodes, virtual_gpu
from amp_xla.graph.lists import OpLists
from amp_xla.graph.training_graph import TrainingGraph, op_of

_PRODUCTS = frozenset(("Mul", "RealDiv", *nodes.MATMULS))


class _Replay(NamedTuple):
    """One recorded run; ``rounded`` are the nodes whose result is rounded to half."""

    nodes: Mapping[str, Any]
    ranges: Mapping[Tensor, Range]
    rounded: Set[str]
    loss: float
    scale: float

    def fails(self, training: TrainingGraph) -> bool:
        """Return whether the loss or a gradient is not finite."""
        return any(self.bad((name, 0)) for name in training.ends)

    def bad(self, tensor: Tensor) -> bool:
        """Return whether a tensor is not finite when it is read."""
        values = self.ranges.get(tensor)
        if values is None or not values.size:
            return False
        overflows = tensor[0] in self.rounded and values.largest >= OVERFLOW
        return overflows or not values.finite

    def carries(self, tensor: Tensor) -> bool:
        """Return whether a tensor is bad, or part of a loop, which passes bad numbers on."""
        return self.bad(tensor) or (tensor[0] in self.nodes and tensor not in self.ranges)

    def inputs(self, node: Any) -> List[Input]:
        """Return the recorded inputs of a node, before the pass' casts."""
        inputs = []
        for text in node.input:
            tensor, to_half = nodes.parse_input(text), False
            while nodes.inserted_cast(tensor[0]) and tensor[0] in self.nodes:
                cast = self.nodes[tensor[0]]
                to_half = to_half or cast.attr["DstT"].type == nodes.HALF
                tensor = nodes.parse_input(cast.input[0])
            values = self.ranges.get(tensor)
            if values is not None:
                inputs.append(Input(tensor[0], self.nodes[tensor[0]].op, values, to_half))
        return inputs


def fetches(training: TrainingGraph) -> List[str]:
    """Return the operations that a replay runs: loss, gradients, loss scale."""
    return training.ends + ([] if training.loss_scale is None else [op_of(training.loss_scale)])


def replay(
    training: TrainingGraph,
    rewritten: Optional[virtual_gpu.Rewritten],
    values: Mapping[str, Any],
    batch: Sequence[Any],
    step: int,
    scale: Optional[float] = None,
) -> Optional[Finding]:
    """Replay one batch and name the first non-finite node.

    Args:
      rewritten: the graph behind ``fetches`` after the pass; None replays in float32 only,
        because training did not run in float16.
      values: variable op name -> the weights (and loss scale) that the batch failed with.
      batch, step: as for ``Stage.run``.
      scale: the loss scale of the failed step, if ``values`` hold another by now.

    Returns:
      None if everything was finite in the replay.
    """
    case = (training, values, batch, step, scale)
    if rewritten is None:
        float32 = training.export(fetches(training))
        plain = _run(float32, nodes.by_name(float32), *case)
        return _Search(training, plain, plain, None).run() if plain.fails(training) else None
    emulated = emulate.tensor_cores(rewritten.graph_def)
    mixed = _run(emulated, nodes.by_name(rewritten.graph_def), *case)
    if not mixed.fails(training):
        return None
    plain = _run(rewritten.before, nodes.by_name(rewritten.before), *case)
    return _Search(training, plain, mixed, rewritten.lists).run()


def _run(
    graph_def: Any,
    graph: Mapping[str, Any],
    training: TrainingGraph,
    values: Mapping[str, Any],
    batch: Sequence[Any],
    step: int,
    scale: Optional[float],
) -> _Replay:
    """Run ``graph_def`` once and record its nodes; ``graph`` maps names to nodes."""
    watched, targets, ranges = watch(graph_def, nodes.ancestors(graph, training.ends))
    stage = Stage(training, graph_def)
    stage.add("replay", watched, "replay")
    stage.load("replay", values)
    current = 1.0
    if training.loss_scale is not None:
        current = float(stage.run([f"replay/{training.loss_scale}"], batch, step, 1.0)[0])
    scale = current if scale is None else scale
    names = [f"replay/{training.loss}:0", *(f"replay/{name}" for name in targets)]
    loss = float(stage.run(names, batch, step, scale / current)[0])
    stage.close()
    return _Replay(graph, ranges, emulate.rounded(graph_def), loss, scale)


class _Search:
    """Walks back from the loss and the gradients to the node that fails first."""

    def __init__(
        self,
        training: TrainingGraph,
        plain: _Replay,
        mixed: _Replay,
        lists: Optional[OpLists],
    ) -> None:
        self._training, self._plain, self._mixed, self._lists = training, plain, mixed, lists
        self._origins = NodeOrigins(training)
        self._trained = _trained(mixed.nodes)

    def run(self) -> Optional[Finding]:
        poisoned = self._poisoned()
        turned = [t for t in poisoned if self._turns_bad(t)]
        mixed_only = [t for t in turned if not self._plain.bad(t)]
        if mixed_only:
            return self._finding(mixed_only, float32_too=False)
        if not self._plain.fails(self._training):
            # Float32 is fine, so mixed precision is the cause, by one of these.
            return self._finding([t for t in poisoned if not self._plain.bad(t)], False)
        return self._finding(turned or list(poisoned), True)

    def _turns_bad(self, tensor: Tensor) -> bool:
        name, values = tensor[0], self._mixed.ranges[tensor]
        if nodes.inserted_cast(name):
            return False  # the node that reads it is reported: its input is beyond float16
        node = self._mixed.nodes[name]
        inputs = self._mixed.inputs(node)
        if values.nan:
            return not any(i.range.nan for i in inputs)
        lost = [i for i in inputs if i.lost]
        if any(i.name in self._trained for i in lost):
            return True
        if lost and values.infinite and name in self._trained and node.op in _PRODUCTS:
            return True
        return all(i.range.finite and not i.lost for i in inputs)

    def _poisoned(self) -> Set[Tensor]:
        """Return non-finite tensors from which non-finite ones lead to the loss or a gradient."""
        replay = self._mixed

        def sources(tensor: Tensor) -> List[Tensor]:
            inputs = map(nodes.parse_input, replay.nodes[tensor[0]].input)
            return [t for t in inputs if t[1] >= 0 and replay.carries(t)]

        ends = [(name, 0) for name in self._training.ends if replay.bad((name, 0))]
        return {t for t in nodes.closure(ends, sources) if replay.bad(t)}

    def _finding(self, tensors: Sequence[Tensor], float32_too: bool) -> Optional[Finding]:
        """Report the first of some tensors, in the order in which the model was built."""
        if not tensors:
            return None
        tensor = min(tensors, key=lambda t: (self._origins.position(t[0]), t[0]))
        replay, name = self._mixed, tensor[0]
        node, origin = replay.nodes[name], self._origins.of(name)
        values, half = replay.ranges[tensor], name in replay.rounded
        inputs = tuple(replay.inputs(node))
        finding = Finding(
            node=name,
            op=node.op,
            layer=origin.layer,
            phase=origin.phase,
            half=half or nodes.is_half(node),
            output=values,
            inputs=inputs,
            source=self._origins.source(name),
            problem=_problem(values, half, inputs, float32_too),
            float32_too=float32_too,
            float32_loss=self._plain.loss,
            half_loss=replay.loss,
            loss_scale=replay.scale,
        )
        layer, constant = self._training.layers.get(origin.layer), self._constant_behind(tensor)
        advice = remedies(finding, layer, constant, self._lists)
        return dataclasses.replace(finding, remedies=advice)

    def _constant_behind(self, tensor: Tensor) -> float:
        """Return the largest constant among the large tensors behind a tensor; 0 if none."""
        ranges, graph = self._mixed.ranges, self._mixed.nodes

        def large_sources(current: Tensor) -> List[Tensor]:
            sources = map(nodes.parse_input, graph[current[0]].input)
            recorded = [source for source in sources if source in ranges]
            return [s for s in recorded if ranges[s].largest > LARGEST or not ranges[s].finite]

        behind = nodes.closure([tensor], large_sources)
        return max((ranges[t].largest for t in behind if graph[t[0]].op == "Const"), default=0.0)


def _trained(graph: Mapping[str, Any]) -> Set[str]:
    """Return the names of the nodes that depend on a variable: not masks, not constants."""
    variables = [name for name, node in graph.items() if node.op == "VarHandleOp"]
    return nodes.closure(variables, nodes.consumers(graph).__getitem__)


def _problem(values: Range, half: bool, inputs: Tuple[Input, ...], float32_too: bool) -> str:
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
