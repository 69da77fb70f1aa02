"""Several GPUs in an own script: ``horovodrun -np 2 python examples/keras_fit_horovod.py``.

Each rank reads its own share of the samples; gradients are averaged, and all ranks take the same
steps. Rank 0 writes the run folder; a second start continues there. One process works too.
"""

import amp_xla.setup  # noqa: F401  # first
import json
import sys

import numpy as np
from bert4keras.backend import keras
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam
from bert4keras.snippets import DataGenerator, sequence_padding

from amp_xla.callbacks import Run
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.process.world import world

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "runs/horovod"
CONFIG = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 64, "hidden_act": "gelu", "max_position_embeddings": 16,
          "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # fmt: skip


def samples(count, seed):
    """Token ids; the label is whether token 7 is among them."""
    random = np.random.RandomState(seed)
    rows = [random.randint(1, 50, random.randint(5, 16)) for _ in range(count)]
    return [(row, int(7 in row)) for row in rows]


class Batches(DataGenerator):
    def __iter__(self, random=False):
        rows, labels = [], []
        for is_end, (row, label) in self.sample(random):
            rows.append(row)
            labels.append([label])
            if len(rows) == self.batch_size or is_end:
                rows = sequence_padding(rows)
                yield [rows, np.zeros_like(rows)], np.array(labels)
                rows, labels = [], []


np.random.seed(1)
with open("bert_config.json", "w") as file:
    json.dump(CONFIG, file)
bert = build_transformer_model("bert_config.json")
first = keras.layers.Lambda(lambda x: x[:, 0])(bert.output)
model = keras.models.Model(bert.inputs, keras.layers.Dense(2, activation="softmax")(first))
# The learning rate of one GPU; with more of them the batch is larger, and often so is the rate.
optimizer = LossScaleOptimizer(Adam(1e-3))
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

# Every rank takes each size-th sample, and all need the same number of batches.
mine = samples(400, seed=0)[world().rank :: world().size]
train = Batches(mine, batch_size=8)
valid = next(iter(Batches(samples(100, seed=1), batch_size=100)))
model.fit(
    train.forfit(), steps_per_epoch=len(train), epochs=2, validation_data=valid, verbose=2,
    callbacks=[Run(FOLDER, resume=True)],
)  # fmt: skip
