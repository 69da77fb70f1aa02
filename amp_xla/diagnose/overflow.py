"""Names the first node that stops being finite, and what to do about it.

The batch is replayed on CPU with every tensor watched, forward and backward: once as mixed
precision would compute it, once in float32. The cause is the first node, in the order in which the
model was written, that turns good numbers into bad ones, from which non-finite numbers flow on to
the loss or a gradient, and which float32 computes well. Turning bad means one of:

- its result is beyond float16, though its inputs are not;
- an input that training changes (not a mask) is beyond float16, or what it is multiplied by;
- its result is NaN, though its inputs are not.

An infinite mask, or the logarithm of zero that a loss discards, is none of these: a softmax takes
-inf well. It is the multiplication by zero after it that does not.
"""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from amp_xla.diagnose import emulate, remedies
from amp_xla.diagnose.constants import LARGEST
from amp_xla.diagnose.finding import OVERFLOW, Finding, Input
from amp_xla.diagnose.places import Places
from amp_xla.diagnose.recorder import Range, Recorder, Tensor
from amp_xla.diagnose.stage import Stage
from amp_xla.graph import nodes, virtual_gpu
from amp_xla.graph.training_graph import TrainingGraph

_PRODUCTS = frozenset(("Mul", "RealDiv", *nodes.MATMULS))


class _Replay(NamedTuple):
    """One watched run: ``bad`` names tensors that hold something non-finite where consumed."""

    nodes: Mapping[str, Any]
    ranges: Mapping[Tensor, Range]
    rounded: Set[str]
    loss: float
    scale: float

    def fails(self, training: TrainingGraph) -> bool:
        """The loss or a gradient is not finite."""
        return any(self.bad((name, 0)) for name in _ends(training))

    def bad(self, tensor: Tensor) -> bool:
        seen = self.ranges.get(tensor)
        if seen is None or not seen.size:
            return False
        overflows = tensor[0] in self.rounded and seen.largest >= OVERFLOW
        return overflows or not seen.finite


def find(
    training: TrainingGraph,
    values: Mapping[str, Any],
    arrays: Sequence[Any],
    step: int,
    capability: str = "8.0",
    lists: Optional[str] = None,
    half: bool = True,
    scale: Optional[float] = None,
) -> Optional[Finding]:
    """Replays one batch and names the first non-finite node.

    Args:
      training: the view of the training graph.
      values: variable op name -> the weights (and loss scale) that the batch failed with.
      arrays: the batch, one array per placeholder.
      step: number of the step, for dropout masks.
      capability, lists: as for ``virtual_gpu.rewrite``.
      half: False replays in float32 only: training did not run in float16.
      scale: the loss scale that it failed at, where ``values`` hold another by now.

    Returns:
      None where everything was finite in the replay.
    """
    graph_def = training.export(fetches(training))
    if not half:
        return replay(training, graph_def, None, values, arrays, step, scale)
    rewritten = virtual_gpu.rewrite(graph_def, fetches(training), capability, lists)
    return replay(training, rewritten.before, rewritten, values, arrays, step, scale)


def fetches(training: TrainingGraph) -> List[str]:
    """Names of the operations that a replay runs: loss, gradients, loss scale."""
    names = _ends(training)
    if training.loss_scale is not None:
        names.append(training.loss_scale.split(":")[0])
    return names


def replay(
    training: TrainingGraph,
    float32: Any,
    rewritten: Optional[virtual_gpu.Rewritten],
    values: Mapping[str, Any],
    arrays: Sequence[Any],
    step: int,
    scale: Optional[float] = None,
) -> Optional[Finding]:
    """As ``find``, for graphs that the pass has seen already.

    Args:
      float32: GraphDef in float32, exported for ``fetches``.
      rewritten: what the pass made of it; None replays in float32 only.
    """
    graphs = nodes.by_name(float32)
    if rewritten is None:
        plain = _run(training, float32, graphs, values, arrays, step, scale)
        return _Search(training, plain, plain, None).run() if plain.fails(training) else None
    half = nodes.by_name(rewritten.graph_def)
    emulated = emulate.tensor_cores(rewritten.graph_def)
    mixed = _run(training, emulated, half, values, arrays, step, scale)
    if not mixed.fails(training):
        return None
    plain = _run(training, float32, graphs, values, arrays, step, scale)
    return _Search(training, plain, mixed, rewritten).run()


def _run(
    training: TrainingGraph,
    graph_def: Any,
    graph: Mapping[str, Any],
    values: Mapping[str, Any],
    arrays: Sequence[Any],
    step: int,
    scale: Optional[float],
) -> _Replay:
    """One watched run; ``graph``: the nodes that are watched and searched, by name."""
    inside = nodes.ancestors(graph, _ends(training))
    recorder = Recorder()  # to be kept: TensorFlow does not own the functions it calls
    watched, targets, ranges = recorder.watch(graph_def, inside)
    stage = Stage(training, graph_def)
    stage.add("replay", watched, "replay")
    stage.load("replay", values)
    held = 1.0
    if training.loss_scale is not None:
        held = float(stage.run([f"replay/{training.loss_scale}"], arrays, step, 1.0)[0])
    scale = held if scale is None else scale
    wanted = [f"replay/{training.loss}:0", *(f"replay/{name}" for name in targets)]
    loss = float(stage.run(wanted, arrays, step, scale / held)[0])
    stage.close()
    return _Replay(graph, ranges, set(emulate.carrier(graph_def)), loss, scale)


def _ends(training: TrainingGraph) -> List[str]:
    """Names of the operations that make the loss and the gradients."""
    return [training.loss, *(name.split(":")[0] for _, name in training.gradients)]


class _Search:
    """Walks back from what went wrong to where it began."""

    def __init__(
        self,
        training: TrainingGraph,
        plain: _Replay,
        mixed: _Replay,
        rewritten: Optional[virtual_gpu.Rewritten],
    ) -> None:
        self._training, self._plain, self._mixed = training, plain, mixed
        self._ends, self._rewritten = _ends(training), rewritten
        self._places = Places(training)
        self._trained = _trained(mixed.nodes)

    def run(self) -> Optional[Finding]:
        poisoned = self._poisoned(self._mixed)
        turned = [t for t in poisoned if self._turns_bad(t)]
        own = [t for t in turned if not self._plain.bad(t)]
        if own:
            return self._finding(min(own, key=self._order), self._mixed, float32_too=False)
        if not any(self._carries(self._plain, (name, 0)) for name in self._ends):
            own = [t for t in poisoned if not self._plain.bad(t)]  # whatever it is, it is in here
            return self._finding(min(own, key=self._order), self._mixed, False) if own else None
        born = turned or [t for t in poisoned if self._born(t, poisoned)]
        return self._finding(min(born, key=self._order), self._mixed, True) if born else None

    def _turns_bad(self, tensor: Tensor) -> bool:
        """See the top of this file."""
        name, seen = tensor[0], self._mixed.ranges[tensor]
        if nodes.inserted_cast(name):
            return False  # it is the node that reads it whose input is beyond float16
        node = self._mixed.nodes[name]
        inputs = self._inputs(self._mixed, node)
        if seen.nan:
            return not any(i.range.nan for i in inputs)
        lost = [i for i in inputs if i.to_half and i.beyond_float16]
        if any(i.name in self._trained for i in lost):
            return True
        if lost and seen.infinite and name in self._trained and node.op in _PRODUCTS:
            return True
        return all(i.range.finite and not (i.to_half and i.beyond_float16) for i in inputs)

    def _poisoned(self, replay: _Replay) -> Set[Tensor]:
        """Non-finite tensors from which non-finite ones lead on to the loss or a gradient."""

        def sources(tensor: Tensor) -> List[Tensor]:
            node = replay.nodes.get(tensor[0])
            inputs = [] if node is None else [nodes.parse_input(text) for text in node.input]
            return [t for t in inputs if t[1] >= 0 and self._carries(replay, t)]

        ends = [(name, 0) for name in self._ends if self._carries(replay, (name, 0))]
        seen, stack = set(ends), list(ends)
        while stack:
            for tensor in sources(stack.pop()):
                if tensor not in seen:
                    seen.add(tensor)
                    stack.append(tensor)
        return {t for t in seen if replay.bad(t)}

    def _carries(self, replay: _Replay, tensor: Tensor) -> bool:
        """Bad, or not watched because it is a loop's plumbing, which passes bad on."""
        node = replay.nodes.get(tensor[0])
        return replay.bad(tensor) or (node is not None and tensor not in replay.ranges)

    def _born(self, tensor: Tensor, poisoned: Set[Tensor]) -> bool:
        node = self._mixed.nodes[tensor[0]]
        return not any(nodes.parse_input(text) in poisoned for text in node.input)

    def _order(self, tensor: Tensor) -> Tuple[int, str]:
        original = self._places.original(tensor[0])
        return self._places.order.get(original, 1 << 60), tensor[0]

    def _finding(self, tensor: Tensor, replay: _Replay, float32_too: bool) -> Finding:
        name = tensor[0]
        node, place = replay.nodes[name], self._places.of(name)
        seen, half = replay.ranges[tensor], name in replay.rounded
        inputs = tuple(self._inputs(replay, node))
        source = self._places.source(name)
        problem = _problem(seen, half, inputs, float32_too)
        advice = remedies.advise(
            remedies.Case(
                op=node.op,
                phase=place.phase,
                layer=self._training.layers.get(place.layer),
                source=source,
                largest_output=seen.largest,
                largest_constant=self._constant_behind(tensor),
                loss_scale=self._mixed.scale,
                float32_too=float32_too,
                lists=None if self._rewritten is None else self._rewritten.lists,
            )
        )
        return Finding(
            node=name,
            op=node.op,
            layer=place.layer,
            phase=place.phase,
            half=half or nodes.HALF in [a.type for a in node.attr.values()],
            output=seen,
            inputs=inputs,
            source=source,
            problem=problem,
            float32_too=float32_too,
            remedies=tuple(advice),
            float32_loss=self._plain.loss,
            half_loss=self._mixed.loss,
            loss_scale=self._mixed.scale,
        )

    def _constant_behind(self, tensor: Tensor) -> float:
        """The largest constant that made a tensor so large, 0 where none did."""
        ranges, largest = self._mixed.ranges, 0.0
        seen, stack = {tensor}, [tensor]
        while stack:
            name, _ = current = stack.pop()
            node = self._mixed.nodes[name]
            if node.op == "Const" and current in ranges:
                largest = max(largest, ranges[current].largest)
            for source in map(nodes.parse_input, node.input):
                held = ranges.get(source)
                if source in seen or held is None or source[0] not in self._mixed.nodes:
                    continue
                if not held.finite or held.largest > LARGEST:
                    seen.add(source)
                    stack.append(source)
        return largest

    def _inputs(self, replay: _Replay, node: Any) -> List[Input]:
        found = []
        for text in node.input:
            tensor, to_half = nodes.parse_input(text), False
            while nodes.inserted_cast(tensor[0]) and tensor[0] in replay.nodes:
                cast = replay.nodes[tensor[0]]
                to_half = to_half or cast.attr["DstT"].type == nodes.HALF
                tensor = nodes.parse_input(cast.input[0])
            seen = replay.ranges.get(tensor)
            if seen is not None:
                op = replay.nodes[tensor[0]].op
                found.append(Input(tensor[0], op, seen, to_half))
        return found


def _trained(graph: Mapping[str, Any]) -> Set[str]:
    """Names of the nodes that depend on a variable: not masks, not constants."""
    outgoing = nodes.consumers(graph)
    variables = [name for name, node in graph.items() if node.op == "VarHandleOp"]
    return nodes.closure(variables, lambda name: [target for target, _ in outgoing[name]])


def _problem(seen: Range, half: bool, inputs: Sequence[Input], float32_too: bool) -> str:
    if float32_too:
        return "not finite in float32 either, so mixed precision is not the cause"
    if half and seen.finite:
        return f"its result reaches {seen.largest:.4g}, and float16 ends at {LARGEST:g}"
    lost = [i for i in inputs if i.to_half and i.beyond_float16]
    if lost:
        what = "a constant" if lost[0].op == "Const" else "an input"
        what = f"{what} of {_signed(lost[0].range):.4g} is infinite in float16"
    elif any(i.range.infinite for i in inputs):
        what = "an input is infinite"
    else:
        return "its result is not finite"
    if lost and not seen.nan:
        return f"{what}, and so is the result"
    return f"{what}, and infinity times zero, or less infinity, is not a number"


def _signed(seen: Range) -> float:
    return seen.low if abs(seen.low) > abs(seen.high) else seen.high
