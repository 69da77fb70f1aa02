"""A user's script under XLA: ``python -m tests.precision.compiled_script LAYERS``.

Prints seconds and programs of each step, as far as ``XLA_FLAGS=--xla_dump_to=programs
--xla_dump_hlo_as_text`` writes them.
"""

import amp_xla.setup  # noqa: F401, I001
import sys
import time
from pathlib import Path

import numpy as np
from bert4keras.backend import keras
from bert4keras.optimizers import Adam

from amp_xla.callbacks import Run
from amp_xla.precision.optimizer import LossScaleOptimizer
from bert4keras.models import BERT


class Count(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.begin = time.time()

    def on_train_batch_end(self, batch, logs=None):
        programs = len(list(Path("programs").glob("*before_opt*")))
        seconds = time.time() - self.begin
        print(f"step {batch}: {seconds:.2f} s, {programs} programs", flush=True)


def main(layers):
    bert = BERT(
        vocab_size=200, hidden_size=64, num_hidden_layers=layers, num_attention_heads=1,
        intermediate_size=128, max_position=32, hidden_act="gelu", dropout_rate=0.1, with_pool=True,
    )  # fmt: skip
    bert.build()
    model = keras.models.Model(bert.model.input, keras.layers.Dense(2)(bert.model.output))
    model.compile(LossScaleOptimizer(Adam(1e-3), 1000), "mse")
    tokens = np.random.RandomState(0).randint(1, 200, [40, 32])
    inputs = [tokens, np.zeros_like(tokens)]
    model.fit(inputs, np.zeros([40, 2]), batch_size=8, verbose=0, callbacks=[Run("run"), Count()])


if __name__ == "__main__":
    main(int(sys.argv[1]))
