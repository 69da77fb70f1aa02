"""Transformer layers computed again in the backward pass, so that their activations are not kept.

    forward, layer i      x ----------------------------------> ... -> y, everything else freed
    backward, layer i     x / 1 -> copies of the operations -> gradients, by the gradient of y

What the backward pass reads of a layer it reads from the copies. The 1 is computed from the
gradient of y, so the copies run no earlier than they are needed, and neither grappler nor XLA,
which knows no control dependencies, can take them for the originals.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from amp_xla import backend
from amp_xla.errors import SettingsError
from amp_xla.graph.nodes import MATMULS, SHAPES, downstream, upstream

tf: Any = backend.tensorflow().compat.v1  # without Keras, which optimizers do without
SCOPE = "recompute"  # of the copies' names
_LAYER = re.compile(r"(?:^|/)Transformer-(\d+)-")  # bert4keras' names
# A place in the graph where a tensor is read: the operation, and which of its inputs it is.
Read = Tuple[Any, int]


def recompute(loss: Any, gradients: Iterable[Any]) -> int:
    """Lets the backward pass compute transformer layers again, all but the last.

    The last would be computed again at once, while it is still there. Not computed again are
    random numbers (of a dropout mask, its bools are kept), weights, shapes, and what follows a
    layer's last matrix product: two tensors of the size of its output are kept instead of a third
    of its work being done twice.

    Args:
      loss: what was differentiated.
      gradients: tensors or IndexedSlices; no session may have run them yet.

    Returns:
      How many layers.

    Raises:
      SettingsError: the loss depends on less than two layers that bert4keras calls
        ``Transformer-<number>-...``.
    """
    ends = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    forward = upstream([loss.op])
    backward = upstream([tensor.op for tensor in ends]) - forward
    order = {op: number for number, op in enumerate(loss.graph.get_operations())}
    members: Dict[int, List[Any]] = {}
    for op in sorted(forward, key=order.__getitem__):
        found = _LAYER.search(op.name)
        if found:
            members.setdefault(int(found.group(1)), []).append(op)
    if len(members) < 2:
        raise SettingsError(
            f"--recompute: the loss depends on {len(members)} layers named Transformer-0-..., "
            "Transformer-1-... and so on, as bert4keras names them; two are the least"
        )
    layers = [_Layer(ops, forward, backward, order) for _, ops in sorted(members.items())]
    after = [downstream([op for op, _ in layer.reads], backward) for layer in layers]
    starts = [layer.start(above - below) for layer, below, above in zip(layers, after, after[1:])]
    done = 0
    with loss.graph.as_default(), tf.control_dependencies(None), loss.graph.name_scope(f"{SCOPE}/"):
        for layer, start in zip(layers, starts):
            if start is not None:
                layer.copy(start)
                done += 1
    return done


def copied_layer(name: str) -> Optional[int]:
    """The number of the layer that a node is a copy of, or None."""
    found = _LAYER.search(name) if name.startswith(f"{SCOPE}/") else None
    return int(found.group(1)) if found else None


class _Layer:
    """The forward operations of one layer, as they were created.

    Attributes:
      reads: where the backward pass reads what can be computed again.
    """

    def __init__(
        self, ops: List[Any], forward: Set[Any], backward: Set[Any], order: Dict[Any, int]
    ) -> None:
        self._ops, self._order = ops, order
        self._stay = _given(ops) | _tail(ops)
        inside = set(ops)
        reads: List[Read] = []
        for op in ops:
            users = {user for tensor in op.outputs for user in tensor.consumers()}
            if any(user in forward and user not in inside for user in users):
                self._stay.add(op)  # the next layer reads it, and then the backward pass there
            if op not in self._stay:
                reads += [
                    (user, index)
                    for user in users
                    if user in backward and user.type not in SHAPES
                    for index, tensor in enumerate(user.inputs)
                    if tensor.op is op
                ]
        self.reads = sorted(reads, key=lambda read: (order[read[0]], read[1]))

    def start(self, above: Collection[Any]) -> Optional[Any]:
        """The gradient that comes in from ``above``: what the layer's first reader reads of it."""
        for op, _ in self.reads:
            for tensor in op.inputs:
                if tensor.op in above and tensor.dtype.is_floating:
                    return tensor
        return None

    def copy(self, start: Any) -> None:
        """Copies what is read, and all it takes; the copies come after the tensor ``start``."""
        wanted = [op.inputs[index].op for op, index in self.reads]
        chosen = upstream(wanted, set(self._ops) - self._stay)
        # Always 1, which no optimizer knows. The division is on no list of mixed precision's: the
        # copies are converted as the originals are.
        one = 1.0 + tf.nn.relu(-tf.abs(tf.reshape(start, [-1])[0]))
        copies: Dict[Any, Any] = {}
        late: Dict[str, Any] = {}

        def read(tensor: Any) -> Any:
            if tensor.op in copies:
                return copies[tensor.op].outputs[tensor.value_index]
            if tensor.op in self._stay or not tensor.dtype.is_floating or not tensor.op.inputs:
                return tensor
            if tensor.name not in late:
                late[tensor.name] = tf.math.divide_no_nan(tensor, tf.cast(one, tensor.dtype))
            return late[tensor.name]

        for op in sorted(chosen, key=self._order.__getitem__):
            inputs = [read(tensor) for tensor in op.inputs]
            waits = any(new is not old for new, old in zip(inputs, op.inputs))
            copies[op] = _copy(op, inputs, [] if waits else [start.op])
        for op, index in self.reads:
            op._update_input(index, read(op.inputs[index]))


def _copy(op: Any, inputs: Sequence[Any], after: Sequence[Any]) -> Any:
    """The operation once more; it remembers the original as a gradient does."""
    attributes = {key: op.node_def.attr[key] for key in op.node_def.attr if key != "_class"}
    graph = op.graph
    with tf.control_dependencies(after), tf.device(op.device or None), graph._original_op(op):
        made = graph.create_op(
            op.type,
            list(inputs),
            [tensor.dtype for tensor in op.outputs],
            name=op.name,
            attrs=attributes,
            op_def=op.op_def,
        )
    for new, old in zip(made.outputs, op.outputs):
        new.set_shape(old.shape)
    return made


def _given(ops: Sequence[Any]) -> Set[Any]:
    """What is no activation: weights, random numbers, shapes, and what follows from these alone.

    It ends at bools: dropout's are the smallest thing to keep.
    """
    found: Set[Any] = set()
    for op in ops:
        fixed = op.op_def.is_stateful or "Random" in op.type or op.type in SHAPES
        if fixed or all(
            tensor.dtype != tf.bool
            and (tensor.op in found or (not tensor.op.inputs and tensor.op.type != "Placeholder"))
            for tensor in op.inputs
        ):
            found.add(op)
    return found


def _tail(ops: Sequence[Any]) -> Set[Any]:
    """What follows from matrix products that no other follows from, themselves included."""
    inside = set(ops)
    products = [op for op in ops if op.type in MATMULS]
    last = [op for op in products if len(downstream([op], inside) & set(products)) == 1]
    return downstream(last, inside)
