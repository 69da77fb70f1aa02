"""The executed graph is counted; a contradiction to the settings is an error that names both."""

import dataclasses
import json

import pytest

from amp_xla.backend import tf
from amp_xla.errors import NothingConvertedError, UnsupportedError
from amp_xla.graph import executed
from tests.support.running import run_python


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


# XLA writes one module per compilation. The batches have 1, 5, 20 and 32 different tokens.
SCRIPT = """
import json, os, re, sys
import numpy as np
from amp_xla import setup
setup.configure(precision="fp32", xla="no_lazy")
from amp_xla.backend import keras, tf
from amp_xla.training.optimizers.adamw import AdamW
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.training.step import TrainStep, initialize_variables

ids = tf.placeholder(tf.int32, [None, None])
vectors = keras.layers.Embedding(40, 16)
loss = tf.reduce_mean(tf.square(tf.tanh(vectors(ids)) - 1.0))
optimizer = LossScaleOptimizer(AdamW(tf.constant(1e-3)), "dynamic", global_clipnorm=1.0)
step = TrainStep({"ids": ids}, None, loss, optimizer, vectors.trainable_weights, 1e-3)
initialize_variables()
compiled = []
for number, (rows, tokens) in enumerate([(4, 1), (4, 5), (4, 20), (4, 32), (6, 32)]):
    batch = (np.arange(rows * 8) % tokens).reshape(rows, 8)
    step({"ids": batch}, number)
    compiled.append(len({re.match("module_[0-9]+", name).group() for name in os.listdir(sys.argv[1])
                         if name.startswith("module_")}))
print(json.dumps(compiled))
"""


@pytest.mark.once
def test_xla_compiles_once_per_shape(tmp_path):
    env = {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    done = run_python("-c", SCRIPT, str(tmp_path), env=env)
    *one_shape, other_shape = json.loads(done.out.splitlines()[-1])
    assert one_shape[0] > 0 and len(set(one_shape)) == 1, one_shape
    assert other_shape > one_shape[0]
