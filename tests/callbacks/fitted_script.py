"""A user's script: ``python -m tests.callbacks.fitted_script FOLDER [stop] [resume] [all]``.

With several ranks each reads its share of the batches; alone it reads the whole ones. ``all``
trains into FOLDER/whole without a stop, then by an optimizer without ``LossScaleOptimizer``, which
prints the error, then stops and resumes.
"""

import amp_xla.setup  # noqa: F401, I001
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
from bert4keras.backend import K, keras

from amp_xla.callbacks import Run
from amp_xla.errors import AmpXlaError
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.process.world import world
from tests.support import heads


class Data(keras.utils.Sequence):
    def __init__(self):
        self.rows = list(range(8))[world().rank :: world().size]

    def __len__(self):
        return 10

    def on_epoch_end(self):
        np.random.shuffle(self.rows)

    def __getitem__(self, index):
        tokens = np.random.RandomState(index).randint(1, 30, [8, 8])[self.rows]
        labels = (tokens[:, 1:] < 5).any(1).astype("int32")[:, None]
        return [tokens, np.zeros_like(tokens)], labels


class Stop(keras.callbacks.Callback):
    def __init__(self, stops):
        super().__init__()
        self.step, self.stops = 0, stops

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        if self.step == 14 and self.stops and world().rank == world().size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs, self.own = [], random.Random(world().rank)

    def on_epoch_end(self, epoch, logs=None):
        self.drawn = np.random.rand() + self.own.random()
        self.epochs.append({name: float(value) for name, value in logs.items()})


def main(folder, stops=False, resume=False):
    K.clear_session()
    folder.mkdir(exist_ok=True)
    bert = heads.encoder(vocab_size=30, hidden_size=16, intermediate_size=32)
    first = keras.layers.Lambda(lambda x: x[:, 0])(bert.output)
    model = keras.models.Model(bert.inputs, keras.layers.Dense(2, activation="softmax")(first))
    random = np.random.RandomState(3 if world().rank == 0 else 4)  # rank 0's weights hold
    model.set_weights([random.randn(*w.shape) * 0.1 for w in model.get_weights()])
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    np.random.seed(1 + world().rank)
    seen, stop = Seen(), Stop(stops)
    run = Run(folder / "run", resume=resume)
    valid = Data()[9]
    model.fit(Data(), epochs=3, validation_data=valid, verbose=2, callbacks=[stop, run, seen])
    found = {
        "epochs": seen.epochs,
        "drawn": seen.drawn,
        "scale": float(K.get_value(optimizer.loss_scale)),
    }
    (folder / f"seen-{world().rank}.json").write_text(json.dumps(found))
    np.savez(str(folder / f"weights-{world().rank}.npz"), *model.get_weights())
    return model


def plain(folder, model):
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    try:
        model.fit(Data(), epochs=1, verbose=0, callbacks=[Run(folder / "plain")])
    except AmpXlaError as error:
        print(error)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if "all" in sys.argv:
        plain(folder, main(folder / "whole"))
        try:
            main(folder, stops=True)
        except SystemExit as stopped:
            assert stopped.code == 143
            main(folder, resume=True)
    else:
        main(folder, "stop" in sys.argv, "resume" in sys.argv)
