"""``fit`` with ``Run`` equals ``fit`` without it, in history and weights."""

import os
import random
import re
import warnings
from typing import Any, Dict

import numpy as np
import pytest

from amp_xla.backend import K, keras, tf
from amp_xla.callbacks import Run
from tests.support.small_fit import Batches, once

# More combinations: TEST_FITS=200 pytest tests/callbacks/test_like_fit.py
COUNT = int(os.environ.get("TEST_FITS", 30))
OURS = ("loss_scale", "skipped_steps")
Data = Dict[str, Any]


class Series:
    """What Keras uses of a pandas Series, whose rows are selected by label."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return self.values.astype(dtype or self.values.dtype)

    def __getitem__(self, labels):  # labels in reverse order
        return self.values[::-1][labels]


def generator(batches):
    while True:
        for index in range(len(batches)):
            yield batches[index]


class Evaluator(keras.callbacks.Callback):
    """Evaluates without weights and writes a score, as scripts do."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def on_epoch_end(self, epoch, logs=None):
        values = self.model.evaluate(self.x, self.y, batch_size=7, verbose=0)
        logs["val_score"] = float(np.ravel(values)[0])


def build(draw, outputs, inputs):
    kinds = {"kernel_initializer": keras.initializers.RandomNormal(seed=draw.randrange(99))}
    ins = [keras.layers.Input([4], name=f"in{i}") for i in range(inputs)]
    hidden = keras.layers.concatenate(ins) if inputs > 1 else ins[0]
    hidden = keras.layers.Dense(3, activation="tanh", **kinds)(hidden)
    outs = [keras.layers.Dense(1, name=f"out{i}", **kinds)(hidden) for i in range(outputs)]
    model = keras.models.Model(ins, outs)
    metrics = draw.choice([None, ["mae"]])
    weights = draw.choice([None, [0.3] * outputs])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=metrics, loss_weights=weights)
    return model


def named(draw, arrays, prefix):
    """Return arrays as fit takes them: one array, a list, or a dictionary."""
    if draw.random() < 0.3:
        return {f"{prefix}{i}": array for i, array in enumerate(arrays)}
    return arrays if len(arrays) > 1 or draw.random() < 0.3 else arrays[0]


def combination(number):
    """Return a function that trains with more callbacks, and words for the combination."""
    draw, array = random.Random(number), np.random.RandomState(number)
    outputs, inputs = draw.choice([1, 1, 2]), draw.choice([1, 1, 2])
    rows, size = draw.randrange(5, 40), draw.choice([1, 3, 8, 32])
    how = draw.choice(["arrays", "arrays", "sequence", "generator"])

    def samples(count):
        return (
            [array.randn(count, 4) for _ in range(inputs)],
            [array.randint(0, 2, [count, 1]) for _ in range(outputs)],
        )

    x, y = samples(rows)
    vx, vy = samples(draw.randrange(3, 30))
    weights = [array.rand(rows) + 0.5 for _ in range(outputs)]
    weighted = draw.choice([None, None, "samples", "classes"])
    given = {"epochs": 3, "shuffle": False}
    inputs_given, targets = named(draw, x, "in"), named(draw, y, "out")
    sample_weight = weights if outputs > 1 else weights[0]
    if how == "arrays":
        given.update(x=inputs_given, y=targets, batch_size=size)
        if outputs == 1 and draw.random() < 0.3:
            given["y"] = Series(y[0][:, 0])
        elif outputs == 1 and draw.random() < 0.2:
            given["y"] = [y[0].tolist()]
        if weighted == "samples":
            given["sample_weight"] = sample_weight
    else:
        arrays = [inputs_given, targets] + [sample_weight] * (weighted == "samples")
        batches = Batches(size, arrays)
        given.update(x=batches if how == "sequence" else generator(batches), workers=0)
        if how == "generator":
            given["steps_per_epoch"] = draw.choice([len(batches), 2])
    if weighted == "classes" and outputs == 1:
        given["class_weight"] = {0: 1.0, 1: 2.5}
    validation = draw.choice([None, "arrays", "weighted", "split", "sequence", "generator"])
    valid = [named(draw, vx, "in"), named(draw, vy, "out")]
    if validation == "split" and how == "arrays":
        given["validation_split"] = 0.3
    elif validation in ("arrays", "weighted"):
        more = [array.rand(len(vx[0])) for _ in range(outputs)]
        tail = [more if outputs > 1 else more[0]] if validation == "weighted" else []
        given["validation_data"] = tuple(valid + tail)
    elif validation in ("sequence", "generator") and how != "arrays":
        held = Batches(4, valid)
        given["validation_data"] = held if validation == "sequence" else generator(held)
        if validation == "generator":
            given["validation_steps"] = len(held)
    validates = "validation_data" in given or "validation_split" in given
    if validates and draw.random() < 0.3:
        given["validation_freq"] = 2
    monitor = "val_loss" if validates and "validation_freq" not in given else "loss"
    makers = {
        "stop": lambda: keras.callbacks.EarlyStopping(
            monitor, patience=1, min_delta=draw.choice([0.0, 5.0]), restore_best_weights=True
        ),
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor, 0.5, 1, min_delta=0.5),
        "schedule": lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.03 / (epoch + 1)),
        "evaluator": lambda: Evaluator(valid[0], valid[1]),
    }
    names = draw.sample(sorted(makers), draw.randrange(3))
    if how != "arrays" and validation == "weighted":
        # Keras validates without weights once a callback has evaluated without them; Run does not.
        names = [name for name in names if name != "evaluator"]
    place = draw.randrange(len(names) + 1)
    seed = draw.randrange(99)

    def train(added):
        draw.seed(seed)
        K.clear_session()
        tf.set_random_seed(3)
        model = build(draw, outputs, inputs)
        callbacks = [makers[name]() for name in names]
        callbacks[place:place] = added
        arguments = dict(given)
        for name in ("x", "validation_data"):
            if hasattr(arguments.get(name), "gi_frame"):
                arguments[name] = generator(arguments[name].gi_frame.f_locals["batches"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own about fit
            history = model.fit(**arguments, verbose=0, callbacks=callbacks).history
        return history, model.get_weights()

    return train, f"{how}, {outputs} outputs, weights {weighted}, {validation}, {names}"


def compare(number, folder):
    train, words = combination(number)
    expected, weights = train([])
    found, ours = train([Run(folder)])
    assert {name for name in found if name not in OURS} == expected.keys(), words
    for name, values in expected.items():
        if re.search(r"out\d_loss", name):
            continue  # Keras reads this metric before or after its update: fit alone differs, too
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=f"{name}: {words}")
    for one, other in zip(ours, weights):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=words)


@pytest.mark.parametrize("number", [*range(8), *once(*range(8, COUNT))])
def test_a_fit_with_run_equals_a_fit_without(number, tmp_path):
    compare(number, tmp_path / "run")


class Trains(keras.callbacks.Callback):
    """Trains on one more batch after some batches, as adversarial scripts do."""

    def __init__(self, every):
        super().__init__()
        self.every = every

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.every == 0:
            self.model.train_on_batch(np.ones([2, 4]), np.ones([2, 1]))


@pytest.mark.once
@pytest.mark.parametrize("how, every", [("sequence", 1), ("sequence", 3), ("generator", 2)])
def test_train_on_batch_in_a_callback_loses_no_batch(how, every, tmp_path):
    found = []
    for added in ([], [Run(tmp_path / "run")]):
        K.clear_session()
        model = build(random.Random(1), 1, 1)
        array = np.random.RandomState(0)
        batches = Batches(4, [array.randn(30, 4), array.randn(30, 1)])
        data = batches if how == "sequence" else generator(batches)
        model.fit(data, steps_per_epoch=8, epochs=2, shuffle=False, verbose=0, workers=0,
                  callbacks=[Trains(every), *added])  # fmt: skip
        found.append(model.get_weights())
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
