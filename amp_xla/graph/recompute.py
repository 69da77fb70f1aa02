"""Recomputes transformer layers in the backward pass instead of keeping their activations.

    forward, layer i      x ----------------------------------> ... -> y, everything else freed
    backward, layer i     x / 1 -> copies of the operations -> gradients, from the gradient of y

The backward pass reads a layer's activations from copies of the layer's operations. The copies read
x / 1 instead of the layer's input x, and this 1 is computed from the gradient of the output y. So
the copies run no earlier than needed. Neither grappler nor XLA can merge them with the originals,
although XLA drops control dependencies.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from amp_xla import backend
from amp_xla.errors import SettingsError
from amp_xla.graph.nodes import MATMULS, SHAPES, downstream, upstream

tf: Any = backend.tensorflow().compat.v1  # does not import Keras, which optimizers do not need
SCOPE = "recompute"  # of the copies' names
_LAYER = re.compile(r"(?:^|/)Transformer-(\d+)-")  # bert4keras' names
Read = Tuple[Any, int]  # an operation and the index of one of its inputs


def recompute(loss: Any, gradients: Iterable[Any]) -> None:
    """Make the backward pass recompute all transformer layers but the last.

    The last layer's activations are still in memory when the backward pass begins. Weights, shapes
    and random numbers are not recomputed. Dropout masks from these stay in memory as bools; masks
    from the hash are recomputed. A layer's last matrix product and the operations after it are not:
    this keeps two more tensors of the output's size in memory, and saves a third of the work.

    No session may have run ``gradients`` (tensors or IndexedSlices) before.

    Raises:
      SettingsError: the loss depends on fewer than two layers named ``Transformer-<number>-...``.
    """
    ends = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    forward = upstream([loss.op])
    backward = upstream([tensor.op for tensor in ends]) - forward
    order = {op: number for number, op in enumerate(loss.graph.get_operations())}
    members: Dict[int, List[Any]] = {}
    for op in sorted(forward, key=order.__getitem__):
        match = _LAYER.search(op.name)
        if match:
            members.setdefault(int(match.group(1)), []).append(op)
    if len(members) < 2:
        raise SettingsError(
            f"recompute: the loss depends on {len(members)} layers named Transformer-0-..., "
            "Transformer-1-..., as bert4keras names them; at least two are needed"
        )
    layers = [_Layer(ops, forward, backward, order) for _, ops in sorted(members.items())]
    readers = [downstream([op for op, _ in layer.reads], backward) for layer in layers]
    starts = [layer.start(b - a) for layer, a, b in zip(layers, readers, readers[1:])]
    with loss.graph.as_default(), tf.control_dependencies(None), loss.graph.name_scope(f"{SCOPE}/"):
        for layer, start in zip(layers, starts):
            if start is not None:
                layer.copy(start)


class _Layer:
    """Forward operations of one layer; ``reads``: where the backward pass reads their outputs."""

    def __init__(
        self, ops: List[Any], forward: Set[Any], backward: Set[Any], order: Dict[Any, int]
    ) -> None:
        self._ops, self._order = ops, order
        self._kept = _constant(ops) | _tail(ops)
        inside = set(ops)
        reads: List[Read] = []
        for op in ops:
            users = {user for tensor in op.outputs for user in tensor.consumers()}
            if any(user in forward and user not in inside for user in users):
                self._kept.add(op)  # the next layer reads it, and so does that layer's gradient
            if op not in self._kept:
                reads += [
                    (user, index)
                    for user in users
                    if user in backward and user.type not in SHAPES
                    for index, tensor in enumerate(user.inputs)
                    if tensor.op is op
                ]
        self.reads = sorted(reads, key=lambda read: (order[read[0]], read[1]))

    def start(self, above: Collection[Any]) -> Optional[Any]:
        """Return the first gradient that this layer's backward pass reads from ``above``, or None.

        ``above``: operations of the backward pass of the layer above.
        """
        for op, _ in self.reads:
            for tensor in op.inputs:
                if tensor.op in above and tensor.dtype.is_floating:
                    return tensor
        return None

    def copy(self, start: Any) -> None:
        """Copy the operations that ``reads`` need, and let ``reads`` use the copies.

        The copies run after the tensor ``start``.
        """
        targets = [op.inputs[index].op for op, index in self.reads]
        copied = upstream(targets, set(self._ops) - self._kept)
        # Always 1, but no graph optimizer can tell. DivNoNan is on no list of mixed precision, so
        # the copies are converted as the originals are.
        one = 1.0 + tf.nn.relu(-tf.abs(tf.reshape(start, [-1])[0]))
        copies: Dict[Any, Any] = {}
        delayed: Dict[str, Any] = {}

        def read(tensor: Any) -> Any:
            if tensor.op in copies:
                return copies[tensor.op].outputs[tensor.value_index]
            if tensor.op in self._kept or not tensor.dtype.is_floating or not tensor.op.inputs:
                return tensor
            if tensor.name not in delayed:
                delayed[tensor.name] = tf.math.divide_no_nan(tensor, tf.cast(one, tensor.dtype))
            return delayed[tensor.name]

        for op in sorted(copied, key=self._order.__getitem__):
            inputs = [read(tensor) for tensor in op.inputs]
            waits = any(new is not old for new, old in zip(inputs, op.inputs))
            copies[op] = _copy(op, inputs, [] if waits else [start.op])
        for op, index in self.reads:
            op._update_input(index, read(op.inputs[index]))


def _copy(op: Any, inputs: Sequence[Any], after: Sequence[Any]) -> Any:
    """Copy an operation; ``_original_op`` of the copy is the original, as in gradients."""
    attributes = {key: op.node_def.attr[key] for key in op.node_def.attr if key != "_class"}
    graph = op.graph
    with tf.control_dependencies(after), tf.device(op.device or None), graph._original_op(op):
        copy = graph.create_op(
            op.type,
            list(inputs),
            [tensor.dtype for tensor in op.outputs],
            name=op.name,
            attrs=attributes,
            op_def=op.op_def,
        )
    for new, old in zip(copy.outputs, op.outputs):
        new.set_shape(old.shape)
    return copy


def _constant(ops: Sequence[Any]) -> Set[Any]:
    """Return weights, random numbers, shapes, and operations that depend on these alone.

    Operations that read bools are not included, so no dropout mask is kept as floats.
    """
    constant: Set[Any] = set()
    for op in ops:
        fixed = op.op_def.is_stateful or "Random" in op.type or op.type in SHAPES
        sources = [tensor.op for tensor in op.inputs]
        if fixed or (
            all(tensor.dtype != tf.bool for tensor in op.inputs)
            and all(s in constant or not (s.inputs or s.type == "Placeholder") for s in sources)
        ):
            constant.add(op)
    return constant


def _tail(ops: Sequence[Any]) -> Set[Any]:
    inside = set(ops)
    products = [op for op in ops if op.type in MATMULS]
    last = [op for op in products if len(downstream([op], inside) & set(products)) == 1]
    return downstream(last, inside)
