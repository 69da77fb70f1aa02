"""Attention by cuDNN, whose kernels never write the scores of all heads to memory.

TensorFlow has no operation for it. XLA's custom call needs one fixed shape, so only training
batches use it. Padding at the end of a row is passed as the row's length. There is no attention
dropout, because a resumed run could not repeat cuDNN's masks.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, tf
from amp_xla.errors import UnsupportedError
from amp_xla.process.progress import note
from amp_xla.settings import Precision

# What cuDNN from 8.9.4 on computes for rows with padding, by the checks of cudnn-frontend 1.3 in
# TensorFlow 2.17: lengths that are multiples of 64, and heads of these sizes.
MULTIPLE, HEADS = 64, (64, 128)
# Inputs, weights and results are rounded to float16, each by at most 0.05%. A wrong operand or
# layout makes errors as large as the numbers.
TOLERANCE = 0.02
# XLA's GpuBackendConfig for tensors [B, heads, L, D] as JAX writes it, without the scores' shape.
_CONFIG = Path(__file__).with_suffix(".json")


@dataclasses.dataclass
class Batch:
    """Rows and tokens per row of a graph's training batches; number, size of attention heads."""

    rows: int
    length: int
    heads: int = 0
    size: int = 0


def unfit(needed: str, found: Any) -> UnsupportedError:
    """Return the error for a setting, model or machine that cuDNN's attention does not support."""
    return UnsupportedError(
        f"--attention fused needs {needed}; found: {found}; change that, or take --attention plain"
    )


def install(shapes: Sequence[Tuple[int, int]]) -> None:
    """Use cuDNN in all attention layers that are built for training in the current graph.

    Raises UnsupportedError on TensorFlow 1.15, or if cuDNN cannot take ``shapes``, (rows, length).
    """
    if backend.kind() == "tf1":
        raise unfit("TensorFlow 2", backend.tensorflow().__version__)
    listed = ", ".join(f"{rows}x{length}" for rows, length in shapes)
    if len(shapes) > 1 or shapes[0][1] % MULTIPLE:
        raise unfit(f"batches of one shape, their length a multiple of {MULTIPLE}", listed)
    tf.get_default_graph()._amp_xla_attention = Batch(*shapes[0])
    note(
        f"cuDNN computes attention, for batches of {listed} (rows x tokens), without attention "
        f"dropout: a resume could not repeat cuDNN's dropout masks"
    )


def batch() -> Optional[Batch]:
    """Return the ``Batch`` that ``install`` set if the graph is built for training, else None."""
    installed = getattr(tf.get_default_graph(), "_amp_xla_attention", None)
    return installed if installed and K.learning_phase() else None


def attention(query: Any, key: Any, value: Any, mask: Any, batch: Batch) -> Any:
    """Build softmax(query key^T) value per head in float16; result: shape and dtype of ``value``.

    Args:
      query, key, value: floats [B, L, heads, D]; ``query`` is already divided by sqrt(D).
      mask: bool [B, L], False for padding at the end of a row; the first token is always True.
      batch: B and L; this function sets its ``heads`` and ``size``.
    """
    batch.heads, batch.size = query.shape.as_list()[2:]
    if batch.size not in HEADS:
        raise unfit(f"heads of size {' or '.join(map(str, HEADS))}", batch.size)
    rows, length = batch.rows, batch.length
    shape = (rows, batch.heads, length, batch.size)
    real = tf.ensure_shape(mask, [rows, length])
    ends = tf.reduce_max(tf.cast(real, tf.int32) * tf.range(1, length + 1), 1)
    # All queries count, as without cuDNN. If some did not, cuDNN 8.9 would need zero gradients.
    lengths = [tf.fill([rows], length), ends]

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
    """Build XLA's call of cuDNN; ``results`` are pairs (dtype, shape), one for each result.

    ``operands``: query, key, value; if ``direction`` is Backward also the statistics, the gradient
    of the output and the output; then the lengths of queries and keys.
    """
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    rows, heads, length, _ = operands[0].shape.as_list()
    config = json.loads(_CONFIG.read_text(encoding="utf-8"))
    scores = config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]
    scores["dimensions"] = list(map(str, (rows, heads, length, length)))
    dtypes, shapes = zip(*results, (tf.uint8, (0,)))  # the last is cuDNN's workspace
    name = operands[len(operands) // 2].op.name  # of the layer and the pass, for reports

    def emit(*operands: Any) -> Any:
        return gen_xla_ops.xla_custom_call_v2(
            operands=operands, call_target_name=f"__cudnn$fmhaSoftmax{direction}", name=name,
            backend_config=json.dumps(config), has_side_effect=False,
            result_dtypes=dtypes, result_shapes=shapes,
        )  # fmt: skip

    # XLA's operation has no kernel elsewhere: without a function TensorFlow cannot place it.
    compiled = backend.tensorflow().function(emit, jit_compile=True, autograph=False)
    return list(compiled(*operands))[:-1]


def verify(precision: Precision, plain: Callable[..., Any]) -> None:
    """Compare cuDNN's attention, if this run uses it, with ``plain``, TensorFlow's attention.

    Raises:
      UnsupportedError: cuDNN's attention cannot run here, or its output or gradients are wrong.
    """
    installed = batch()
    if installed is None:
        return
    capability = (backend.compute_capability() or (8, 0)) if backend.gpus() else (0, 0)
    if capability < (8, 0):
        found = f"compute capability {capability[0]}.{capability[1]}" if any(capability) else "none"
        raise unfit("a GPU of compute capability 8.0 or higher", found)
    if precision.half != "float16" or precision.settings.xla == "off":
        raise unfit("float16 and XLA (--precision amp, --xla on)", precision.describe())
    try:
        worst = max(_errors(installed, plain))
    except tf.errors.OpError as error:
        reason = str(error).strip().splitlines()[0]
        raise unfit("cuDNN 8.9.4 or later that computes attention on this GPU", reason) from error
    if worst > TOLERANCE:
        allowed = f"a cuDNN that differs from plain attention by at most {TOLERANCE:.0%}"
        raise unfit(allowed, f"{worst:.1%} of the largest number of plain attention")
    note(f"cuDNN differs from plain attention by {worst:.2%} of plain attention's largest number")


def _errors(batch: Batch, plain: Callable[..., Any]) -> List[float]:
    """Compare cuDNN's attention with ``plain``: for the output and each gradient, return an error.

    The error is the largest absolute difference, divided by the largest number of ``plain``.
    """
    random, shape = np.random.RandomState(1), (2, batch.length, batch.heads, batch.size)
    arrays = [random.standard_normal(shape).astype(np.float16) for _ in range(4)]
    with backend.session().graph.as_default():
        inputs = [tf.placeholder(tf.float64, shape) for _ in arrays]  # which AMP leaves alone
        query, key, value, gradient = inputs
        query *= batch.size**-0.5
        real = tf.sequence_mask([batch.length, batch.length // 3], batch.length)
        outs = [
            attention(query, key, value, real, dataclasses.replace(batch, rows=2)),
            plain(query, key, value, (tf.cast(real, tf.float64)[:, None, None] - 1.0) * 1e4),
        ]
        results = [[out, *tf.gradients(out, inputs[:3], gradient)] for out in outs]
    found, expected = backend.session().run(results, dict(zip(inputs, arrays)))
    errors = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, expected)]
    return [float(np.nan_to_num(error, nan=np.inf)) for error in errors]
