"""Floating-point operations of a training step, counted on its graph, and the machine's ceiling.

Only matrix products count (MatMul, BatchMatMul, Einsum): 2 * m * n * k each, forward and backward
as they stand in the graph. That is what "model FLOPs" are, and what the ceiling is measured with.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.graph import shapes


def count(graph: Any, fetches: List[Any], feed: Mapping[Any, Any]) -> Optional[int]:
    """FLOPs of one run of ``fetches`` with arrays of the feed's shapes.

    Args:
      graph: the tf.Graph.
      fetches: tensors or operations; only what they need is counted.
      feed: placeholder -> array.

    Returns:
      The count; None if TensorFlow cannot tell some product's shape.
    """
    names = [f.name.split(":")[0] for f in fetches]
    needed = tf.graph_util.extract_sub_graph(graph.as_graph_def(), names)
    fed = {tensor.op.name: np.shape(array) for tensor, array in feed.items()}
    known, unknown = shapes.matmuls(needed, shapes.static_shapes(needed, names, fed))
    return None if unknown else sum(product.flops for product in known)


def ceiling(
    dtype: str, size: int = 2048, seconds: float = 1.0, products: int = 1
) -> Tuple[float, Dict[str, Any]]:
    """The best rate of a square matrix product here, FLOPs a second, and how it was measured.

    Args:
      dtype: ``float32``, ``float16`` or ``bfloat16``.
      size: rows and columns.
      seconds: how long to try; the fastest run counts.
      products: in one call of the session, whose own cost would hide a GPU's rate.
    """
    with tf.Graph().as_default() as graph:
        kind = tf.as_dtype(dtype)
        random = tf.random.stateless_normal((size, size), seed=(1, 2), dtype=tf.float32)
        # Of this size, so that products of products stay finite in half precision.
        a = tf.Variable(tf.cast(random * size**-0.5, kind), trainable=False)
        product = a
        for _ in range(products):
            product = tf.linalg.matmul(product, a)
        # The operation, not its value: nothing is copied, and a fetched one is not pruned.
        done = product.op
        start = tf.global_variables_initializer()
    options = tf.OptimizerOptions(global_jit_level=tf.OptimizerOptions.OFF)
    config = backend.session_config(None)
    config.graph_options.optimizer_options.CopyFrom(options)
    config.gpu_options.allow_growth = True
    best, runs = float("inf"), 0
    with tf.Session(graph=graph, config=config) as session:
        session.run(start)
        session.run(done)
        until = time.perf_counter() + seconds
        while runs < 3 or time.perf_counter() < until:
            began = time.perf_counter()
            session.run(done)
            best = min(best, time.perf_counter() - began)
            runs += 1
    rate = 2.0 * size**3 * products / best
    return rate, {"dtype": dtype, "size": size, "runs": runs, "flops_per_second": rate}
