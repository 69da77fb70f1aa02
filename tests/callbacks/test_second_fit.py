"""Weights that XLA clusters wrote stay when the next ``fit`` begins.

On TensorFlow 1.15, ``is_variable_initialized`` is False for a variable whose initializer XLA ran.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.running import run_python

SCRIPT = """
import json
import sys
import amp_xla.setup
import amp_xla.callbacks
import numpy as np
from bert4keras.backend import keras
from amp_xla.precision.optimizer import LossScaleOptimizer

x = np.random.RandomState(0).randn(256, 20).astype("f")
y, seen = x[:, :1], {}


def build(optimizer="adam"):
    hidden = keras.layers.Dense(64, input_shape=(20,))
    model = keras.models.Sequential([hidden, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


class Look(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.weights = self.model.get_weights()


def fit(name, model, *others):
    before, look = [each.get_weights() for each in (model, *others)], Look()
    callbacks = [look, amp_xla.callbacks.Run(sys.argv[1] + "/" + name)]
    history = model.fit(x, y, epochs=1, verbose=0, callbacks=callbacks).history
    after = [look.weights] + [each.get_weights() for each in others]
    same = [np.array_equal(*pair) for pair in zip(sum(before, []), sum(after, []))]
    seen[name] = [all(same), float(history["loss"][0])]


one = build()
one.fit(x, y, epochs=20, verbose=0)
fit("trained without Run", one)
two = build(LossScaleOptimizer(keras.optimizers.Adam(), 1000))
fit("a second model", two, one)
fit("trained with Run", two, one)
one.save_weights(sys.argv[1] + "/weights.h5")
two.load_weights(sys.argv[1] + "/weights.h5")
fit("loaded between", two, one)
print(json.dumps(seen))
"""


def test_weights_stay_when_the_next_fit_begins(tmp_path: Path) -> None:
    done = run_python("-c", SCRIPT, str(tmp_path), env={"AMP_XLA_XLA": "on"})
    assert done.code == 0, done.err
    seen = json.loads(done.out.splitlines()[-1])
    assert all(same for same, _ in seen.values()), seen
    assert seen["trained without Run"][1] < 0.01 and seen["loaded between"][1] < 0.01
    assert seen["a second model"][1] > seen["trained with Run"][1]
