"""Attention by cuDNN, whose kernels keep the scores of all heads out of memory.

TensorFlow has no operation for it. XLA has a custom call, on one shape that the graph must state,
so a model has it for the batches of training alone. Padding at the end of a row is passed as the
row's length. There is no dropout: a resumed run could not repeat cuDNN's.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.errors import UnsupportedError
from amp_xla.process.progress import note
from amp_xla.settings import Precision

# What cuDNN computes for rows with padding in all versions from 8.9.4 on: checks of cudnn-frontend
# 1.3, which is part of TensorFlow 2.17.
MULTIPLE = 64  # of the tokens per row
HEADS = (64, 128)  # sizes of a head
CAPABILITY = (8, 0)  # compute capability
# Inputs, weights and results are rounded to float16, each by at most 0.05%. A wrong operand or
# layout makes errors as large as the numbers.
TOLERANCE = 0.02
# Product -> contracted dimensions of both sides; the names are XLA's.
_FORWARD = {"bmm1": "33", "bmm2": "32"}
_BACKWARD = {
    "bmm1_grad_gemm1": "22", "bmm1_grad_gemm2": "32", "bmm2_grad_gemm1": "22",
    "bmm2_grad_gemm2": "33",
}  # fmt: skip


@dataclasses.dataclass
class Batch:
    """Rows and tokens per row of a graph's training batches; heads of its model, and their size."""

    rows: int
    length: int
    heads: int = 0
    size: int = 0


def unfit(needed: str, found: Any) -> UnsupportedError:
    """Return the error of a setting, model or machine that cuDNN's attention does not fit."""
    return UnsupportedError(
        f"--attention fused needs {needed}; found: {found}; change that, or take --attention plain"
    )


def install(shapes: Sequence[Tuple[int, int]]) -> None:
    """Use cuDNN in all attention layers that the current graph gets for training.

    Args:
      shapes: (rows, length) of the training batches.

    Raises:
      UnsupportedError: TensorFlow is 1.15, or the batches have several shapes or another length.
    """
    if backend.kind() == "tf1":
        raise unfit("TensorFlow 2", backend.tensorflow().__version__)
    listed = ", ".join(f"{rows}x{length}" for rows, length in shapes)
    if len(shapes) > 1 or shapes[0][1] % MULTIPLE:
        raise unfit(f"batches of one shape, their length a multiple of {MULTIPLE}", listed)
    tf.get_default_graph()._amp_xla_attention = Batch(*shapes[0])
    note(
        f"attention by cuDNN, batches of {listed}; no attention weights are dropped, because a "
        f"resumed run could not repeat cuDNN's dropout"
    )


def batch() -> Optional[Batch]:
    """Return the installed batch while a graph is built for training, else None."""
    phase = K.learning_phase()  # a tensor in scripts
    training = isinstance(phase, int) and phase
    return getattr(tf.get_default_graph(), "_amp_xla_attention", None) if training else None


def attention(query: Any, key: Any, value: Any, mask: Optional[Any], batch: Batch) -> Any:
    """Build softmax(query key^T) value per head, in float16.

    Args:
      query, key, value: floats [B, L, heads, D]; ``query`` is already divided by sqrt(D).
      mask: bool [B, L], False for padding at the end of a row; None = no padding. A row of padding
        alone attends to its first token.
      batch: B and L; gets the sizes of the heads.

    Returns:
      [B, L, heads, D], the dtype of ``value``.
    """
    batch.heads, batch.size = query.shape.as_list()[2:]
    if batch.size not in HEADS:
        raise unfit(f"heads of size {' or '.join(map(str, HEADS))}", batch.size)
    rows, length = batch.rows, batch.length
    shape = (rows, batch.heads, length, batch.size)
    real = tf.fill([rows, length], True) if mask is None else tf.ensure_shape(mask, [rows, length])
    ends = tf.reduce_max(tf.cast(real, tf.int32) * tf.range(1, length + 1), 1)
    # All queries count, as without cuDNN. If some did not, cuDNN 8.9 would need zero gradients.
    lengths = [tf.fill([rows], length), tf.maximum(ends, 1)]

    def half(x: Any) -> Any:
        return tf.ensure_shape(tf.transpose(tf.cast(x, tf.float16), (0, 2, 1, 3)), shape)

    def back(x: Any, like: Any) -> Any:
        return tf.cast(tf.transpose(x, (0, 2, 1, 3)), like.dtype)

    def forward(query: Any, key: Any, value: Any) -> Tuple[Any, Callable[[Any], Any]]:
        q, k, v = half(query), half(key), half(value)
        results = [(tf.float16, shape), (tf.float32, shape[:3])]
        out, statistics = call([q, k, v, *lengths], results)

        def derivative(dy: Any) -> Tuple[Any, Any, Any]:
            operands = [q, k, v, statistics, half(dy), out, *lengths]
            dq, dk, dv = call(operands, [(tf.float16, shape)] * 3, "Backward")
            # cuDNN may leave out blocks of padding.
            dk, dv = (tf.where_v2(real[:, None, :, None], x, tf.zeros_like(x)) for x in (dk, dv))
            return back(dq, query), back(dk, key), back(dv, value)

        return back(out, value), derivative

    return tf.custom_gradient(forward)(query, key, value)


def call(
    operands: Sequence[Any], results: Sequence[Tuple[Any, Sequence[int]]], direction: str = ""
) -> List[Any]:
    """Build XLA's call of cuDNN.

    Args:
      operands: query, key, value; for the backward pass also the statistics, the gradient of the
        output and the output; then the lengths of queries and keys.
      results: dtype and shape of each.
      direction: ``Backward``, or '' for the forward pass.
    """
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    config = _config(operands[0].shape.as_list()[:3], _BACKWARD if direction else _FORWARD)
    dtypes, shapes = zip(*results, (tf.uint8, (0,)))  # the last is cuDNN's workspace
    name = operands[len(operands) // 2].op.name  # of the layer and the pass, for reports

    def emit(*operands: Any) -> Any:
        return gen_xla_ops.xla_custom_call_v2(
            operands=operands, call_target_name=f"__cudnn$fmhaSoftmax{direction}", name=name,
            backend_config=json.dumps({"cudnn_fmha_backend_config": config}),
            has_side_effect=False, result_dtypes=dtypes, result_shapes=shapes,
        )  # fmt: skip

    # XLA's operation has no kernel elsewhere: without a function TensorFlow cannot place it.
    compiled = backend.tensorflow().function(emit, jit_compile=True, autograph=False)
    return list(compiled(*operands))[:-1]


def _config(sizes: Sequence[int], products: Dict[str, str]) -> Dict[str, Any]:
    """Return XLA's ``CudnnfMHABackendConfig``, as JAX writes it; sizes: rows, heads, length."""
    dimensions = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [left], "rhs_contracting_dimensions": [right],
            "lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "1"],
        }
        for name, (left, right) in products.items()
    }  # fmt: skip
    algorithm = {
        "algo_id": "0", "math_type": "TENSOR_OP_MATH", "tuning_knobs": {"17": "1", "24": "0"},
        "is_cudnn_frontend": True, "workspace_size": "0",
    }  # fmt: skip
    scores = {
        "element_type": "F16", "dimensions": [str(n) for n in (*sizes, sizes[-1])],
        "is_dynamic_dimension": [False] * 4, "layout": {"minor_to_major": ["3", "2", "1", "0"]},
    }  # fmt: skip
    return {
        "algorithm": algorithm, "fmha_scale": 1.0, "dropout_rate": 0.0, "seed": "42",
        "is_flash_attention": True, "mask_type": "PADDING", "intermediate_tensor_shape": scores,
        **dimensions,
    }  # fmt: skip


def verify(precision: Precision) -> None:
    """Compare cuDNN's attention with plain attention once on this machine, if it is installed.

    Raises:
      UnsupportedError: it cannot run here, or its output or gradients are wrong.
    """
    installed = batch()
    if installed is None:
        return
    if not backend.gpus():
        raise unfit("an NVIDIA GPU", "none")
    if precision.half != "float16" or precision.settings.xla == "off":
        raise unfit("float16 and XLA (--precision amp, --xla on)", precision.describe())
    capability = backend.compute_capability() or CAPABILITY
    if capability < CAPABILITY:
        raise unfit("compute capability 8.0 or higher", "{}.{}".format(*capability))
    try:
        errors = _errors(installed)
    except tf.errors.OpError as error:
        reason = str(error).strip().splitlines()[0]
        raise unfit("cuDNN 8.9.4 or later that computes it on this GPU", reason) from error
    worst = max(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf))
    found = f"a difference of {errors[worst]:.2%} in {worst}"
    if not errors[worst] <= TOLERANCE:
        raise unfit(f"a cuDNN that agrees with plain attention to {TOLERANCE:.0%}", found)
    note(f"attention by cuDNN agrees with plain attention: at most {found}")


def _errors(installed: Batch) -> Dict[str, float]:
    """Return the largest error of output and gradients, relative to the largest number of each."""
    from amp_xla.models import derivatives

    random, length = np.random.RandomState(1), installed.length
    shape, lengths = (
        (2, length, installed.heads, installed.size),
        np.array([[length], [length // 3]]),
    )
    arrays = [random.standard_normal(shape).astype(np.float16) for _ in range(4)]
    with backend.session().graph.as_default():
        # Of float64, which AMP leaves alone.
        inputs = [tf.placeholder(tf.float64, shape) for _ in arrays]
        query, key, value, gradient = inputs
        real = tf.constant(np.arange(length) < lengths)
        query *= installed.size**-0.5
        outs = [
            attention(query, key, value, real, dataclasses.replace(installed, rows=2)),
            derivatives.attention(query, key, value, derivatives.mask_bias(real[:, None, None])),
        ]
        results = [[out, *tf.gradients(out, inputs[:3], gradient)] for out in outs]
    fused, plain = backend.session().run(results, dict(zip(inputs, arrays)))
    names = ("the output", *(f"the gradient of the {name}" for name in ("query", "key", "value")))
    return {n: np.abs(a - b).max() / np.abs(b).max() for n, a, b in zip(names, fused, plain)}
