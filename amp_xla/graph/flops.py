"""Rate of a large matrix product on this machine: the ceiling for a training step."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, List

from amp_xla import backend
from amp_xla.backend import tf
from amp_xla.process.progress import note

_SIZE = 2048  # rows and columns
_SECONDS = 0.5  # how long to try


def ceiling(dtype: str) -> float:
    """Measure the best rate of a square matrix product in FLOPs per second.

    ``dtype`` is ``float32``, ``float16`` or ``bfloat16``. The fastest run counts.
    """
    # The overhead of a session call would hide a GPU's rate.
    products = 32 if backend.gpus() else 1
    with tf.Graph().as_default() as graph:
        random = tf.random.stateless_normal((_SIZE, _SIZE), seed=(1, 2), dtype=tf.float32)
        # Scaled so that products of products stay finite in half precision.
        a = tf.Variable(tf.cast(random * _SIZE**-0.5, tf.as_dtype(dtype)), trainable=False)
        product = a
        for _ in range(products):
            product = tf.linalg.matmul(product, a)
        start = tf.global_variables_initializer()
    options = tf.OptimizerOptions(global_jit_level=tf.OptimizerOptions.OFF)
    config = tf.ConfigProto(allow_soft_placement=True)
    config.graph_options.optimizer_options.CopyFrom(options)
    config.gpu_options.allow_growth = True
    seconds: List[float] = []
    with tf.Session(graph=graph, config=config) as session:
        session.run(start)
        # The operation, not its value: nothing is copied, and a fetched operation is not pruned.
        session.run(product.op)
        while len(seconds) < 3 or sum(seconds) < _SECONDS:
            began = time.perf_counter()
            session.run(product.op)
            seconds.append(time.perf_counter() - began)
    return 2.0 * _SIZE**3 * products / min(seconds)


def with_utilisation(job: Any) -> Any:
    """Measure the peak; return the job with ``model_flops_utilisation`` among its rates."""
    peak = ceiling(job.resolved.half or "float32")
    note(f"matrix products reach {peak / 1e9:.0f} GFLOP/s (measured)")
    flops = job.rates["model_flops_per_second"]
    rates = {"model_flops_utilisation": lambda step: flops(step) / peak}
    return dataclasses.replace(job, rates=rates)
