"""The executed graph is counted, and a contradiction to the settings is an error that names both."""

from __future__ import annotations

import dataclasses

import pytest

from amp_xla.backend import tf
from amp_xla.errors import NothingConvertedError, UnsupportedError
from amp_xla.graph import executed


def run(dtype):
    """Counts a real executed graph that multiplies matrices in ``dtype``."""
    with tf.Graph().as_default(), tf.Session() as session:
        a = tf.placeholder(tf.float32, [4, 4])
        product = tf.cast(tf.matmul(tf.cast(a, dtype), tf.cast(a, dtype)), tf.float32)
        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        session.run(product, {a: [[1.0] * 4] * 4}, options, metadata)
    return executed.count(metadata.partition_graphs)


def test_counts_half_nodes_and_casts():
    full, half = run(tf.float32), run(tf.float16)
    assert (full.half_nodes, full.half_dtype, full.clusters) == (0, "", 0)
    # oneDNN uses its own `_MklMatMul` if the processor has float16 (AVX-512 FP16).
    products = {op: n for op, n in half.half_ops.items() if "MatMul" in op}
    assert half.half_dtype == "float16" and sum(products.values()) == 1
    assert half.casts == 2  # one there, one back; grappler merges the two of the same input
    assert "float16 (1 matrix products, 2 casts)" in half.describe()


def test_agreement_passes():
    executed.verify(run(tf.float16), "amp", "float16", "a GPU", "off")
    executed.verify(run(tf.float32), "amp", None, "no GPU", "off")
    executed.verify(run(tf.float32), "fp32", "float16", "a GPU", "off")


def test_amp_on_a_machine_that_can_and_nothing_converted():
    with pytest.raises(NothingConvertedError, match=r"has float16 \(a GPU\).*did not run"):
        executed.verify(run(tf.float32), "amp", "float16", "a GPU", "off")


def test_half_precision_that_nobody_asked_for():
    with pytest.raises(UnsupportedError, match="precision=tf32 is set"):
        executed.verify(run(tf.float16), "tf32", "float16", "a GPU", "off")


def test_xla_without_clusters_and_clusters_without_xla():
    counts = run(tf.float32)
    with pytest.raises(UnsupportedError, match="xla=on is set"):
        executed.verify(counts, "fp32", None, "no GPU", "on")
    with pytest.raises(UnsupportedError, match="xla=off is set"):
        executed.verify(dataclasses.replace(counts, clusters=2), "fp32", None, "no GPU", "off")
