"""Attention by cuDNN, whose kernels keep the scores of each head out of memory.

TensorFlow has no operation for it. XLA has a custom call, which works on one shape that the graph
must state, so a model has it for the batches of training alone. cuDNN's own dropout cannot be
repeated after a kill, so there is none. The padding at the end of a row is passed as a length.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.errors import UnsupportedError
from amp_xla.process.progress import note
from amp_xla.settings import Precision

# What the kernels of all versions of cuDNN from 8.9.4 on support, for rows with padding (checks of
# cudnn-frontend 1.3, which is in TensorFlow 2.17).
MULTIPLE = 64  # of the tokens per row
HEADS = (64, 128)  # sizes of a head
CUDNN, CAPABILITY = (8, 9, 4), (8, 0)
# Weights, scores and results are rounded to float16: each has an error of up to 0.05%. A wrong
# operand or layout gives errors of the numbers' own size.
TOLERANCE = 0.02
OTHERWISE = "or take --attention plain"


@dataclasses.dataclass
class Batch:
    """Rows and tokens per row of a graph's training batches; heads and their size."""

    rows: int
    length: int
    heads: int = 0
    size: int = 0


def install(shapes: Sequence[Tuple[int, int]]) -> None:
    """Use cuDNN in all attention layers that the current graph gets for training.

    Args:
      shapes: (rows, length) of the batches of training.

    Raises:
      UnsupportedError: TensorFlow is 1.15, or the batches have several shapes or another length.
    """
    if backend.kind() == "tf1":
        version = backend.tensorflow().__version__
        raise UnsupportedError(f"--attention fused needs TensorFlow 2; found: {version}")
    listed = ", ".join(f"{rows}x{length}" for rows, length in shapes)
    if len(shapes) > 1 or shapes[0][1] % MULTIPLE:
        raise UnsupportedError(
            f"--attention fused needs batches of one shape, whose length is a multiple of "
            f"{MULTIPLE}; found: {listed}; change the maximum length, {OTHERWISE}"
        )
    tf.get_default_graph()._amp_xla_attention = Batch(*shapes[0])
    note(
        f"attention by cuDNN, batches of {listed}: no attention weights are dropped, because its "
        f"dropout cannot be repeated in a resumed run"
    )


def batch() -> Optional[Batch]:
    """Return the installed batch if the current graph is being built for training, else None."""
    return (
        getattr(tf.get_default_graph(), "_amp_xla_attention", None) if K.learning_phase() else None
    )


def attention(query: Any, key: Any, value: Any, mask: Optional[Any], batch: Batch) -> Any:
    """Build softmax(query key^T) value per head in float16.

    Args:
      query, key, value: floats [B, L, heads, D]; ``query`` is already divided by sqrt(D).
      mask: bool [B, L], False for padding at the end of a row; None = no padding. A row of padding
        alone attends to its first token.
      batch: B and L.

    Returns:
      [B, L, heads, D], the dtype of ``value``.
    """
    batch.heads, batch.size = query.shape.as_list()[2:]
    if batch.size not in HEADS:
        sizes = " or ".join(map(str, HEADS))
        raise UnsupportedError(
            f"--attention fused needs heads of size {sizes}; found: {batch.size}; take another "
            f"model, {OTHERWISE}"
        )
    rows, length = batch.rows, batch.length
    shape = (rows, batch.heads, length, batch.size)
    real = (
        tf.ones([rows, length], tf.bool)
        if mask is None
        else tf.ensure_shape(mask, shape[:1] + (length,))
    )
    ends = tf.where(
        real, tf.zeros_like(real, tf.int32) + tf.range(1, length + 1), tf.ones_like(real, tf.int32)
    )
    # All queries count, also those of padding: for others cuDNN 8.9 needs gradients of 0.
    lengths = [tf.fill([rows], length), tf.reduce_max(ends, 1)]

    def half(x: Any) -> Any:
        return tf.ensure_shape(tf.transpose(tf.cast(x, tf.float16), (0, 2, 1, 3)), shape)

    def back(x: Any, dtype: Any) -> Any:
        return tf.cast(tf.transpose(x, (0, 2, 1, 3)), dtype)

    def forward(query: Any, key: Any, value: Any) -> Tuple[Any, Callable[[Any], Any]]:
        q, k, v = half(query), half(key), half(value)
        out, statistics = _call([q, k, v, *lengths], [(tf.float16, shape), (tf.float32, shape[:3])])

        def derivative(dy: Any) -> Tuple[Any, Any, Any]:
            operands = [q, k, v, statistics, half(dy), out, *lengths]
            dq, dk, dv = _call(operands, [(tf.float16, shape)] * 3, "Backward")
            # cuDNN may leave out blocks of padding.
            dk, dv = (tf.where_v2(real[:, None, :, None], x, tf.zeros_like(x)) for x in (dk, dv))
            return back(dq, query.dtype), back(dk, key.dtype), back(dv, value.dtype)

        return back(out, value.dtype), derivative

    return tf.custom_gradient(forward)(query, key, value)


def unsupported(layer: str) -> UnsupportedError:
    """Return the error of a layer with other attention."""
    return UnsupportedError(
        f"--attention fused masks the padding at the end of rows alone; {layer} also has positions "
        f"or masks of pairs of tokens (packed rows, --objective other than mlm, NEZHA, RoFormer): "
        f"change that, {OTHERWISE}"
    )


def _call(
    operands: Sequence[Any], results: Sequence[Tuple[Any, Any]], direction: str = ""
) -> List[Any]:
    """Build XLA's call of cuDNN.

    Args:
      operands: query, key, value; for the backward pass also the statistics, the gradient of the
        output and the output; then both lengths.
      results: dtype and shape of each.
      direction: ``Backward``, or '' for the forward pass.
    """
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    *sizes, _ = operands[0].shape.as_list()
    dtypes, shapes = zip(*results, (tf.uint8, (0,)))  # the last is cuDNN's workspace

    def call(*operands: Any) -> Any:
        return gen_xla_ops.xla_custom_call_v2(
            operands=operands, call_target_name=f"__cudnn$fmhaSoftmax{direction}",
            backend_config=json.dumps({"cudnn_fmha_backend_config": _config(sizes, direction)}),
            has_side_effect=False, result_dtypes=dtypes, result_shapes=shapes,
        )  # fmt: skip

    # XLA's operation has no kernel elsewhere: without a function TensorFlow cannot place it.
    compiled = backend.tensorflow().function(call, jit_compile=True, autograph=False)
    return list(compiled(*operands))[:-1]


def _config(sizes: Sequence[int], direction: str) -> Dict[str, Any]:
    """Return XLA's ``CudnnfMHABackendConfig``, as JAX writes it; sizes: rows, heads, tokens."""
    # Contracted dimensions of both sides of each product.
    products = {"bmm1": (3, 3), "bmm2": (3, 2)}
    if direction:
        products = {
            "bmm1_grad_gemm1": (2, 2), "bmm1_grad_gemm2": (3, 2), "bmm2_grad_gemm1": (2, 2),
            "bmm2_grad_gemm2": (3, 3),
        }  # fmt: skip
    dimensions = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(left)], "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "1"],
        }
        for name, (left, right) in products.items()
    }  # fmt: skip
    knobs = {"17": "1", "24": "0"}
    return {
        "algorithm": {
            "algo_id": "0", "math_type": "TENSOR_OP_MATH", "tuning_knobs": knobs,
            "is_cudnn_frontend": True, "workspace_size": "0",
        },
        "fmha_scale": 1.0, "dropout_rate": 0.0, "seed": "42", "is_flash_attention": True,
        "mask_type": "PADDING",
        "intermediate_tensor_shape": {
            "element_type": "F16", "dimensions": [str(n) for n in (*sizes, sizes[-1])],
            "tuple_shapes": [], "is_dynamic_dimension": [False] * 4,
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
        },
        **dimensions,
    }  # fmt: skip
