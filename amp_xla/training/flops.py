"""What this device's matrix products reach: what a model's speed is measured against."""

from __future__ import annotations

import time

from amp_xla import backend, setup
from amp_xla.backend import tf

SECONDS = 0.5


def matmul_ceiling() -> float:
    """Floating-point operations a second of a large square product in the step's precision.

    The best of as many as fit in half a second; square, aligned and alone, so what a training
    step reaches is below it.
    """
    half, _ = backend.half_dtype()
    use_half = setup.current().precision == "amp" and half is not None
    dtype = tf.as_dtype(half) if use_half else tf.float32
    size = 4096 if backend.gpus() else 1024
    with tf.Graph().as_default(), tf.Session(config=backend.session_config(None)) as session:
        a = tf.Variable(tf.cast(tf.random.uniform([size, size], seed=1), dtype))
        b = tf.Variable(tf.cast(tf.random.uniform([size, size], seed=2), dtype))
        # A chain, so that one call is long against what calling costs.
        product = a.read_value()
        count = 16 if backend.gpus() else 2
        for _ in range(count):
            product = tf.matmul(product, b) * (1.0 / size)
        # A number that needs all of it: XLA leaves out what nobody fetches.
        run = session.make_callable(tf.reduce_max(tf.cast(product, tf.float32)))
        session.run(tf.global_variables_initializer())
        run()
        best, until = float("inf"), time.perf_counter() + SECONDS
        while True:
            began = time.perf_counter()
            run()
            now = time.perf_counter()
            best = min(best, now - began)
            if now > until:
                return count * 2.0 * size**3 / best
