"""The rate of a large matrix product here, the ceiling that a training step is compared with."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Dict, Tuple

from amp_xla.backend import tf
from amp_xla.process.progress import note


def ceiling(
    dtype: str, size: int = 2048, seconds: float = 1.0, products: int = 1
) -> Tuple[float, Dict[str, Any]]:
    """Measure the best rate of a square matrix product in FLOPs per second.

    Args:
      dtype: ``float32``, ``float16`` or ``bfloat16``.
      size: rows and columns.
      seconds: how long to try; the fastest run counts.
      products: per session call, whose overhead would hide a GPU's rate.

    Returns:
      (FLOPs per second, how it was measured).
    """
    with tf.Graph().as_default() as graph:
        kind = tf.as_dtype(dtype)
        random = tf.random.stateless_normal((size, size), seed=(1, 2), dtype=tf.float32)
        # Scaled so that products of products stay finite in half precision.
        a = tf.Variable(tf.cast(random * size**-0.5, kind), trainable=False)
        product = a
        for _ in range(products):
            product = tf.linalg.matmul(product, a)
        # The operation, not its value: nothing is copied, and a fetched operation is not pruned.
        done = product.op
        start = tf.global_variables_initializer()
    options = tf.OptimizerOptions(global_jit_level=tf.OptimizerOptions.OFF)
    config = tf.ConfigProto(allow_soft_placement=True)
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


def with_utilisation(job: Any) -> Any:
    """Measure the peak; return the job with ``model_flops_utilisation`` among its rates."""
    peak, _ = ceiling(job.resolved.half or "float32", seconds=0.5)
    note(f"matrix products reach {peak / 1e9:.0f} GFLOP/s (measured)")
    flops = job.rates["model_flops_per_second"]
    rates = {"model_flops_utilisation": lambda step: flops(step) / peak}
    return dataclasses.replace(job, rates=rates)
