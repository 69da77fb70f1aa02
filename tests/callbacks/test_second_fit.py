"""Weights that XLA clusters wrote stay when the next ``fit`` begins.

On TensorFlow 1.15, ``is_variable_initialized`` is False for a variable whose initializer XLA ran.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_xla import backend
from tests.support.running import run_python

SCRIPT = """
import json
import sys
import amp_xla.setup
import amp_xla.callbacks
import numpy as np
from bert4keras.backend import keras
from amp_xla.precision.optimizer import LossScaleOptimizer

x, seen = np.random.RandomState(0).randn(64, 8).astype("f"), {}


def build(optimizer):
    hidden = keras.layers.Dense(8, input_shape=(8,))
    model = keras.models.Sequential([hidden, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


class Look(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.weights = self.model.get_weights()


def fit(name, model, other):
    before, look = model.get_weights() + other.get_weights(), Look()
    callbacks = [look, amp_xla.callbacks.Run(sys.argv[1] + "/" + name)]
    model.fit(x, x[:, :1], verbose=0, callbacks=callbacks)
    seen[name] = all(map(np.array_equal, before, look.weights + other.get_weights()))


one = build("adam")
one.fit(x, x[:, :1], verbose=0)
two = build(LossScaleOptimizer(keras.optimizers.Adam(), 1000))
fit("trained before", one, two)
fit("a second model", two, one)
one.save_weights(sys.argv[1] + "/weights.h5")
two.load_weights(sys.argv[1] + "/weights.h5")
fit("loaded between", two, one)
print(json.dumps(seen))
"""


@pytest.mark.skipif(backend.kind() == "tf2", reason="a defect of TensorFlow 1.15")
def test_weights_stay_when_the_next_fit_begins(tmp_path: Path) -> None:
    done = run_python("-c", SCRIPT, str(tmp_path), env={"AMP_XLA_XLA": "on"})
    assert done.code == 0, done.err
    assert list(json.loads(done.out.splitlines()[-1]).values()) == [True] * 3, done.out
