"""XLA compiles once per batch shape, not once per batch: gradients of embeddings are dense."""

import json

import pytest

from tests.support.running import run_python

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
