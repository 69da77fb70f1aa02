"""Translates a training step, as AMP rewrites it for a GPU, into HLO, the language of XLA.

The HLO contains the forward pass, the backward pass and the test whether gradients are finite, for
one batch shape. The update is left out, because XLA compiles it as a separate program if a step may
be skipped. If gradients are accumulated, their sums and the test are left out, too.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Dict, Mapping, Sequence

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.errors import UnsupportedError
from amp_xla.graph import optimized, virtual_gpu
from amp_xla.graph.training_graph import TrainingGraph


def of_step(training: TrainingGraph, feeds: Mapping[str, Sequence[int]]) -> bytes:
    """Return the ``HloModuleProto`` of loss and gradients; ``feeds``: placeholder -> shape.

    Raises:
      PassFailedError: the mixed-precision pass failed.
      UnsupportedError: XLA cannot compile an operation, or does not know a shape.
    """
    fetches = list(training.ends)
    if training.finite:
        finite = training.graph.get_operation_by_name(training.finite)
        # With accumulation a branch computes it, at the end of a window.
        fetches += [finite.name] if all(t.op.type != "Merge" for t in finite.inputs) else []
    graph = virtual_gpu.rewrite(training, fetches, repeatable=False).graph_def
    for node in graph.node:
        if node.name in training.constants:
            value = tf.make_tensor_proto(training.constants[node.name])
            node.CopyFrom(tf.NodeDef(name=node.name, op="Const"))
            node.attr["dtype"].type = value.dtype
            node.attr["value"].tensor.CopyFrom(value)
    # Removes the branches that the constants exclude, such as inference instead of training.
    graph = optimized.passed(graph, ["constfold", "loop", "pruning"], fetches)
    return module(graph, fetches, feeds)


def module(graph: Any, fetches: Sequence[str], feeds: Mapping[str, Sequence[int]]) -> bytes:
    """Return the ``HloModuleProto`` of a GraphDef; the call changes the GraphDef.

    Placeholders that are not in ``feeds`` are scalars. Here XLA translates for a CPU, because
    variables on a GPU would need a GPU; ``graph.compiler`` runs the GPU passes later.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import compiler_ir

    variables: Dict[str, Any] = {}
    inputs: Dict[str, Any] = {}
    _rename_functions(graph.library, graph.node)
    with context.eager_mode():
        for node in graph.node:
            node.device = ""
            if node.op == "VarHandleOp":
                shape = [d.size for d in node.attr["shape"].shape.dim]
                value = tf.zeros(shape, tf.as_dtype(node.attr["dtype"].type))
                variables[f"{node.name}:0"] = backend.tensorflow().Variable(value)
                node.CopyFrom(tf.NodeDef(name=node.name, op="Placeholder"))
                node.attr["dtype"].type = tf.resource.as_datatype_enum
                node.attr["shape"].shape.unknown_rank = True
            elif node.op in ("Placeholder", "PlaceholderWithDefault"):
                dtype = tf.as_dtype(node.attr["dtype"].type)
                inputs[f"{node.name}:0"] = tf.TensorSpec(feeds.get(node.name, []), dtype)

        def step(*arrays: Any) -> Any:
            capture = tf.get_default_graph().capture
            mapped = dict(zip(inputs, arrays))
            mapped.update((name, capture(v.handle)) for name, v in variables.items())
            outputs = [f"{name}:0" for name in fetches]
            return tf.graph_util.import_graph_def(graph, mapped, outputs, name="")

        specs = list(inputs.values())
        try:
            function = tf.wrap_function(step, specs)
            function = function.prune(function.inputs[: len(specs)], list(function.outputs))
            translate = compiler_ir.from_concrete_function(function, specs)
            result: bytes = translate(stage="hlo_serialized")
        except (ValueError, tf.errors.OpError) as error:
            reason = " ".join(str(error).split())
            unknown = re.search(r"No registered '(\w+)' OpKernel .*?\{\{node ([^}]+)\}\}", reason)
            if unknown:
                reason = f"XLA has no {unknown.group(1)} ({unknown.group(2)})"
            raise UnsupportedError(f"XLA cannot compile this step: {reason}") from error
    return result


def _rename_functions(library: Any, nodes: Any) -> None:
    """Rename rewritten functions, because TensorFlow still has the originals by these names."""
    names = {function.signature.name for function in library.function}
    for function in library.function:
        function.signature.name += "_rewritten"
    for node in itertools.chain(nodes, *(function.node_def for function in library.function)):
        for value in node.attr.values():
            if value.func.name in names:
                value.func.name += "_rewritten"
