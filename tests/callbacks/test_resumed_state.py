"""What a resumed ``fit`` restores: windows, the end of a run, the state of other callbacks."""

from __future__ import annotations

import array
import collections
import logging
import os
import pathlib
import queue
import re
import shutil
import signal
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

from amp_xla.backend import K, keras, tf
from amp_xla.callbacks import Run
from amp_xla.training import checkpoint
from tests.callbacks.test_callbacks_at_the_start import Holder
from tests.support.running import until
from tests.support.small_fit import (
    EPOCHS,
    Batches,
    KilledAfter,
    X,
    Y,
    as_in_a_new_process,
    build,
    fit,
    once,
    resumed,
    states,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("accumulate", [5, *once(4)])
def test_a_window_over_the_end_of_an_epoch_is_exact(accumulate, tmp_path, capfd):
    """An epoch has 7 micro-batches, of which the third is NaN: its window restores averages."""
    x = X.copy()
    x[9] = np.nan

    def trained(run, *more, epochs=EPOCHS):
        model = build(accumulate=accumulate, norm=True)
        fit(model, run, *more, x=x, shuffle=False, epochs=epochs)
        return states(model)

    whole, *again = resumed(trained, tmp_path)
    left = 7 * EPOCHS % accumulate
    said = f"the last {left} micro-batches made no update"
    assert capfd.readouterr().err.count(said) == 3 * bool(left)
    trained(Run(tmp_path / "longer"), epochs=1)
    assert [*again, trained(Run(tmp_path / "longer", resume=True))] == [whole] * 3


class Stops(keras.callbacks.Callback):
    """Ends the run after two epochs, as an evaluator of a script's own may."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


def early(baseline=None):
    return keras.callbacks.EarlyStopping(
        "val_loss", min_delta=10.0, patience=2, restore_best_weights=True, baseline=baseline
    )


@pytest.mark.parametrize("make", [early, *once(Stops)])
def test_a_run_that_a_callback_has_ended_stays_ended(make, tmp_path):
    found = []
    for _ in range(2):
        as_in_a_new_process()
        model = build()
        epochs = fit(model, make(), Run(tmp_path / "run", resume=True), epochs=9,
                     validation_data=(X, Y))  # fmt: skip
        found.append(states(model))
    assert found[0] == found[1] and not epochs
    fit(model, Run(tmp_path / "run", resume=True), epochs=9, validation_data=(X, Y))
    assert states(model) != found[0]  # without the callback the run continues


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.once
def test_state_that_cannot_be_restored_is_named_at_the_start(tmp_path, capfd):
    class Meter:
        def __init__(self):
            self.total = 0

    class Odd(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.meter, self.parts, self.log_path = Meter(), [b"a", 1], "here"  # a meter is held
            self.rows, self.bits, self.token = iter([1]), bytearray(1), ""
            self.drawn, self.codes = np.random.MT19937(1), array.array("b", [1])
            self.folder, self.pattern = pathlib.Path("here"), re.compile("a")
            self.joined, self.big = b"", 1
            self.queue, self.thread, self.log = queue.Queue(), threading.Thread(), logging.root
            self.fixed, self.pair, self.pairs = Pair(1, ("a", 2)), Pair(1, 2), [Pair(1, 2)]
            self.exact = np.zeros(1, np.longdouble)

        def on_train_batch_end(self, batch, logs=None):
            self.joined, self.big = self.joined + b"x", self.big << 20
            self.pair = Pair(batch, 2)
            self.token, self.url = f"hidden {batch}", f"https://me:hidden@host/{batch}"

    odd = Odd()
    fit(build(), odd, Run(tmp_path / "run"), epochs=1)
    printed = capfd.readouterr().err
    said = (
        "checkpoints do not hold Odd.parts (list), "
        "Odd.rows (list_iterator), Odd.bits (bytearray), Odd.drawn (MT19937), Odd.codes (array), "
        "Odd.pairs (list), Odd.exact (ndarray): "
    )
    assert printed.count(said) == 1
    later = {"joined": 1, "big": 1, "pair": 1, "token": 1, "url": 1}
    for name in (*later, "folder", "pattern", "queue", "thread", "log", "fixed"):
        count = later.get(name, 0)
        assert printed.count(f"Odd.{name} (") == count, name
    states = (tmp_path / "run/checkpoints").glob("*/state.json")
    assert not any("hidden" in path.read_text() for path in states)


def test_variables_of_callbacks_are_restored_or_named(tmp_path, capfd):
    """``fit`` saves the variables that TensorFlow lists when it begins."""

    class Counts(keras.callbacks.Callback):
        def __init__(self, model):
            super().__init__()
            self.early, self.list, self.map = K.variable(0), [K.variable(0)], {1: (K.variable(0),)}
            self.local = tf.Variable(0.0, collections=[tf.GraphKeys.LOCAL_VARIABLES])
            self.mean, self.own = keras.metrics.Mean(), model.metrics
            K.get_session().run(self.local.initializer)

        def on_train_begin(self, logs=None):
            self.late, self.late_list = K.variable(0), [K.variable(0)]

        def on_epoch_begin(self, epoch, logs=None):
            self.later = K.variable(0)
            for variable in (self.early, *self.list, *self.map[1]):
                K.set_value(variable, K.get_value(variable) + 1)

    def counted(run, *more):
        model = build()
        counts = Counts(model)
        fit(model, run, counts, *more)
        return K.batch_get_value([counts.early, *counts.list, *counts.map[1]])

    assert resumed(counted, tmp_path, KilledAfter(epoch=2)) == [[EPOCHS] * 3] * 2
    printed = capfd.readouterr().err
    kind = type(K.variable(0)).__name__
    named = f"Counts.local ({kind}), Counts.mean (Mean), Counts.late ({kind}), Counts.late_list "
    assert printed.count(f"checkpoints do not hold {named}(list): a resume") == 3
    assert printed.count(f"checkpoints do not hold Counts.later ({kind})") == 3


class Slow(keras.callbacks.Callback):
    """Gets a signal in Keras' validation, or in its own, which changes the weights for a while."""

    def __init__(self, epoch, folder, hook):
        super().__init__()
        self.ends, self._now, self._folder = 0, 0, folder
        self._hit = lambda now, where: (now, where) == (epoch, hook)

    def on_epoch_begin(self, epoch, logs=None):
        self._now = epoch

    def on_test_batch_begin(self, batch, logs=None):
        if self._hit(self._now, "validation"):
            assert batch <= 1, "the validation went on"
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        self.ends += 1
        killed = self._hit(epoch, "killed")
        if killed or self._hit(epoch, "callback"):
            weights = self.model.get_weights()
            self.model.set_weights([w * 0 for w in weights])
            os.kill(os.getpid(), signal.SIGTERM)
            newest = f"step-{7 * (epoch + 1):08d}"  # written at once, not after the callback
            until((self._folder / "checkpoints" / newest).is_dir)
            if killed:
                shutil.copytree(str(self._folder), str(self._folder) + "-killed")
            self.model.set_weights(weights)


@pytest.mark.parametrize(("hook", "epoch"), [
    ("validation", EPOCHS - 1), ("killed", EPOCHS - 1),
    *once(("validation", 1), ("callback", 1)),
])  # fmt: skip
def test_a_signal_in_an_evaluation_saves_what_came_before_it(hook, epoch, tmp_path):
    def trained(folder, number, resume=False):
        model, slow = build(), Slow(number, folder, hook)
        fit(model, slow, Run(folder, resume=resume), validation_data=(X, Y))
        return states(model), slow.ends

    expected, folder = trained(tmp_path / "whole", 99), tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        trained(folder, epoch)
    folder = tmp_path / "run-killed" if hook == "killed" else folder
    assert ended.value.code == 143
    assert checkpoint.newest(folder / "checkpoints").step == 7 * (epoch + 1)
    as_in_a_new_process()
    assert trained(folder, 99, resume=True) == expected
    for path in (tmp_path / "whole", folder):
        assert (path / "metrics.jsonl").read_text().count('"dev"') == EPOCHS


class Views(Batches):
    """Batches that are views of the data; the last one is kept."""

    def __init__(self):
        super().__init__(4)
        self.x = X[:24].copy()
        self.last = self.x[:4]

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.last = self.x[4 * index : 4 * index + 4]
        return self.last, Y[4 * index : 4 * index + 4]


@pytest.mark.once
def test_another_object_in_place_of_one_leaves_that_as_it_is(tmp_path):
    class Keeps(keras.callbacks.Callback):
        def __init__(self, names, last):
            super().__init__()
            self.names, self.last, self.frozen, self.kept = names, last, Holder([]), []

        def on_epoch_begin(self, epoch, logs=None):
            self.frozen = Holder([])

        def on_train_batch_end(self, batch, logs=None):
            self.frozen.held.append(batch)

        def on_epoch_end(self, epoch, logs=None):
            self.names, self.last = [str(epoch)], collections.deque([epoch])
            self.kept.append(list(self.frozen.held))

    def trained(run, *more):
        model, rows, names, last = build(), Views(), ["a"], collections.deque()
        keeps = Keeps(names, last)
        fit(model, run, keeps, *more, x=rows, y=None, batch_size=None, workers=0)
        return states(model), keeps.kept, names, last, rows.x.tobytes()

    whole, *again = resumed(trained, tmp_path)
    assert again == [whole, whole]


class Rows(Batches):
    """Batches of rows that are chosen while the model trains, or labelled by it."""

    def __init__(self, model, how):
        super().__init__(4)
        self.rows, self.epochs = list(range(26)), 0
        self._model, self._how, self._copies = model, how, 2000 if how == "many" else 2

    def __getitem__(self, index):
        rows = self.rows[4 * index : 4 * index + 4]
        soft = self._how in ("labels", "generator")
        return X[rows], (self._model.predict(X[rows]) + Y[rows]) / 2 if soft else Y[rows]

    def on_epoch_end(self):
        self.epochs += 1
        if self._how == "own end" and self.epochs == 2:
            self.mine()

    def mine(self):
        losses = np.abs(self._model.predict(X) - Y)[:, 0]
        self.rows[:] = [int(row) for row in np.argsort(-losses)[:13]] * self._copies

    def drawn(self):
        while True:
            yield self[np.random.randint(6)]


@pytest.mark.parametrize("how, named, exact", [
    ("callback", (0,), True), ("generator", (2,), True),
    *once(("own end", (0,), True), ("labels", (0, 1, 2), True), ("many", (2,), False)),
])  # fmt: skip
def test_data_that_depend_on_the_model_are_exact_or_named(how, named, exact, tmp_path, capfd):
    def trained(run, *more):
        model = build()
        rows = Rows(model, how)
        end = rows.mine if how in ("callback", "many") else lambda: None
        mining = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch and end())
        given = {"x": rows.drawn() if how == "generator" else rows, "y": None, "batch_size": None}
        fit(model, run, mining, *more, steps_per_epoch=7, workers=0, **given)
        return states(model)

    whole, *again = resumed(trained, tmp_path)
    assert [each == whole for each in again] == [exact] * 2
    assert capfd.readouterr().err.count("is not the same as before the checkpoint") in named


def held():
    """Yield batches in an order that is drawn for each pass."""
    while True:
        for rows in np.array_split(np.random.permutation(26), 5):
            yield X[rows], Y[rows]


@pytest.mark.once
def test_an_object_with_several_names_stays_one(tmp_path):
    """A list of the data is also in a callback's dictionary; validation reads a generator on."""

    def trained(run, *more):
        model, pool = build(), {"train": list(range(20))}
        rows = Rows(model, "")
        rows.rows = pool["train"]
        moved = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: pool["train"].insert(0, 25 - epoch)
        )
        rate = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: K.set_value(
                model.optimizer.inner.lr, 0.01 * logs["val_loss"]
            )
        )
        given = {"x": rows, "y": None, "batch_size": None, "validation_data": held()}
        fit(model, run, moved, rate, *more, steps_per_epoch=5, validation_steps=2, **given)
        return states(model), pool

    whole, *again = resumed(trained, tmp_path)
    assert again == [whole, whole]
