"""The executed graph is counted; a contradiction to the settings is an error that names both."""

import dataclasses

import pytest

from amp_xla.backend import tf
from amp_xla.errors import NothingConvertedError, UnsupportedError
from amp_xla.graph import executed


def run(dtype):
    """Count an executed graph that multiplies matrices in ``dtype``."""
    with tf.Graph().as_default(), tf.Session() as session:
        a = tf.placeholder(tf.float32, [4, 4])
        product = tf.cast(tf.matmul(tf.cast(a, dtype), tf.cast(a, dtype)), tf.float32)
        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        session.run(product, {a: [[1.0] * 4] * 4}, options, metadata)
    return executed.count(metadata.partition_graphs)


FULL, HALF = run(tf.float32), run(tf.float16)


def test_half_nodes_and_casts_are_counted():
    assert (FULL.half_nodes, FULL.half_dtype, FULL.clusters) == (0, "", 0)
    # oneDNN uses its own `_MklMatMul` if the processor has float16 (AVX-512 FP16).
    products = {op: n for op, n in HALF.half_ops.items() if "MatMul" in op}
    assert HALF.half_dtype == "float16" and sum(products.values()) == 1
    assert HALF.casts == 2  # one to half, one back; grappler merges the two of the same input
    assert "float16 (1 matrix products, 2 casts)" in HALF.describe()


@pytest.mark.parametrize(
    "counts, precision, xla, error, text",
    [
        (FULL, "amp", "off", NothingConvertedError, r"has float16 \(a GPU\).*did not run"),
        (HALF, "tf32", "off", UnsupportedError, "precision=tf32 is set, but .* float16"),
        (FULL, "fp32", "on", UnsupportedError, "xla=on is set, but .* no XLA clusters"),
        (dataclasses.replace(FULL, clusters=2), "fp32", "off", UnsupportedError, "xla=off is set"),
    ],
)
def test_a_contradiction_is_an_error(counts, precision, xla, error, text):
    with pytest.raises(error, match=text):
        executed.verify(counts, precision, "float16", "a GPU", xla)
