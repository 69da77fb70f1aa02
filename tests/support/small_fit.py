"""A small model and its data for tests of ``Run``."""

import numpy as np
import pytest

from amp_xla.backend import K, keras, tf
from amp_xla.callbacks import Run, run
from amp_xla.precision.optimizer import LossScaleOptimizer

X = np.random.RandomState(0).randn(26, 4)
Y = (X[:, :1] > 0).astype("float32")
EPOCHS = 4


def once(*cases):
    """Return cases of ``parametrize``, values or tuples, that are tried on one TensorFlow only."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.once)
        for case in cases
    ]


class Killed(Exception):
    """Ends ``fit`` like a bug in a script: only files on disk are left."""


class KilledAfter(keras.callbacks.Callback):
    """Ends ``fit`` after a number of batches, or in an epoch's end."""

    def __init__(self, batches=10**6, epoch=10**6):
        super().__init__()
        self._left, self._epoch = batches, epoch

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left < 0:
            raise Killed

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self._epoch:
            raise Killed


def resumed(trained, folder, *kills):
    """Return the results of ``trained(run, *callbacks)``: whole, then after each kill and a resume.

    Without ``kills``, one is within the third epoch and one between the second and the third.
    """
    results = [trained(Run(folder / "whole/run", checkpoint_every=1))]
    for number, kill in enumerate(kills or (KilledAfter(17), KilledAfter(epoch=2))):
        path = folder / f"killed-{number}/run"
        with pytest.raises(Killed):
            trained(Run(path, checkpoint_every=1), kill)
        results.append(trained(Run(path, resume=True, checkpoint_every=1)))
    return results


class Batches(keras.utils.Sequence):
    """Rows of all ``arrays``, of any structure, in batches of ``size``; the last one is shorter."""

    def __init__(self, size, arrays=(X, Y)):
        self._size, self._arrays = size, arrays

    def __len__(self):
        return -(-len(tf.nest.flatten(self._arrays)[0]) // self._size)

    def __getitem__(self, index):
        rows = slice(index * self._size, (index + 1) * self._size)
        return tuple(tf.nest.map_structure(lambda array: array[rows], self._arrays))


class Shuffled(Batches):
    """Batches in another order after each pass."""

    def __init__(self):
        super().__init__(4)
        self.order = np.arange(len(self))

    def __getitem__(self, index):
        return super().__getitem__(self.order[index])

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def as_in_a_new_process():
    """Forget which runs this process has ended: a new one knows none."""
    run._ENDED.clear()


def build(
    rate = 0.01, activation = "tanh", dropout = 0.2, scale = 1000.0,
    loss = "mse", clear = True, norm = False, **optimizer
):  # fmt: skip
    """Return a small model with the same weights each time."""
    if clear:
        K.clear_session()
    tf.set_random_seed(1)
    inputs = keras.layers.Input([4])
    hidden = keras.layers.Dense(3, activation=activation)(inputs)
    hidden = keras.layers.Dropout(dropout)(hidden)
    hidden = keras.layers.BatchNormalization()(hidden) if norm else hidden
    model = keras.models.Model(inputs, keras.layers.Dense(1)(hidden))
    random = np.random.RandomState(3)
    model.set_weights([random.randn(*w.shape) for w in model.get_weights()])
    adam = LossScaleOptimizer(keras.optimizers.Adam(rate), scale, **optimizer)
    model.compile(adam, loss, metrics=["accuracy"])
    return model


def fit(model, *callbacks, **more):
    """Fit on ``X`` and ``Y`` in batches of 4, the last one of 2; return the history."""
    given = {"x": X, "y": Y, "batch_size": 4, "epochs": EPOCHS, "verbose": 0, **more}
    np.random.seed(5)
    return model.fit(callbacks=list(callbacks), **given).history


def weights(model):
    """Return all weights, those of the optimizer included."""
    inner = getattr(model.optimizer, "inner", model.optimizer)
    return model.get_weights() + list(K.batch_get_value(inner.weights))


def states(model):
    """Return the bits of all weights; call it before the next model is built."""
    return [array.tobytes() for array in weights(model)]
