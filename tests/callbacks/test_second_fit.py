"""Scripts that call ``fit`` more than once, or stop it within an epoch."""

import json
import re

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import keras, tf
from amp_xla.callbacks import Run
from amp_xla.errors import DataError
from tests.support.running import run_python
from tests.support.small_fit import (
    Batches,
    Killed,
    KilledAfter,
    Shuffled,
    as_in_a_new_process,
    build,
    fit,
    once,
    resumed,
    states,
)

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


def fit(name, model, other):
    before, first = model.get_weights() + other.get_weights(), []
    look = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: first.extend(model.get_weights()))
    callbacks = [look, amp_xla.callbacks.Run(sys.argv[1] + "/" + name)]
    model.fit(x, x[:, :1], verbose=0, callbacks=callbacks)
    seen[name] = all(map(np.array_equal, before, first + other.get_weights()))


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
def test_weights_stay_when_the_next_fit_begins(tmp_path):
    """``is_variable_initialized`` is False for a variable whose initializer XLA ran."""
    done = run_python("-c", SCRIPT, str(tmp_path), env={"AMP_XLA_XLA": "on"})
    assert list(json.loads(done.out.splitlines()[-1]).values()) == [True] * 3, done.out


def drawn():
    """Yield batches in an order that depends on all earlier ones."""
    batches = Shuffled()
    while True:
        batches.on_epoch_end()
        yield from (batches[number] for number in range(len(batches)))


class Changing(Batches):
    """Batches whose size and number, state of the object alone, change after each pass."""

    def on_epoch_end(self):
        self._size = 7 - self._size


MAKERS = {"sequence": Shuffled, "changing": lambda: Changing(4), "generator": drawn}


@pytest.mark.slow
@pytest.mark.parametrize("kind, epochs, steps, early", [
    ("sequence", 3, 3, False),
    *once(("changing", 9, 7, True), ("generator", 3, 4, False), ("generator", 9, 7, True)),
])  # fmt: skip
def test_a_finished_fit_leaves_data_as_they_were_for_the_next(kind, epochs, steps, early, tmp_path):
    def trained(run, *callbacks):
        as_in_a_new_process()
        model, first = build(), Run(run.folder.path.parent / "first", resume=True)
        how = {"x": MAKERS[kind](), "y": None, "batch_size": None, "steps_per_epoch": steps}
        stops = [keras.callbacks.EarlyStopping("loss", 10.0, 2)] * early
        fit(model, first, *stops, epochs=epochs, **how)
        fit(model, run, *callbacks, epochs=2, **how)
        return states(model)

    whole, again = resumed(trained, tmp_path, KilledAfter(steps + 1))
    assert again == whole


def test_a_new_run_with_initial_epoch_begins_with_the_first_batch(tmp_path):
    def trained(run, *callbacks):
        read, model = [], build()
        batches = ((read.append(batch[0].tobytes()), batch)[1] for batch in drawn())
        how = {"x": batches, "y": None, "batch_size": None, "steps_per_epoch": 5}
        # A resume may pass another one.
        fit(model, run, *callbacks, initial_epoch=1 - run._config.run.resume, **how)
        return states(model), read

    whole, *others = resumed(trained, tmp_path, KilledAfter(7), KilledAfter(epoch=3))
    assert len(whole[1]) == 3 * 5 and others == [whole] * 2


@pytest.mark.once
def test_a_sequence_may_change_its_length_but_not_have_0(tmp_path):
    how = {"y": None, "batch_size": None, "shuffle": False}
    plain = fit(build(dropout=0.0), x=Changing(4), **how)["loss"]
    ours = fit(build(dropout=0.0), Run(tmp_path / "run"), x=Changing(4), **how)["loss"]
    np.testing.assert_allclose(ours, plain, rtol=1e-5)
    empty = type("Empty", (Changing,), {"__len__": lambda self: 0})(4)
    with pytest.raises(DataError, match="Empty has no batches: its length is 0"):
        fit(build(), Run(tmp_path / "empty"), x=empty, **how)


@pytest.mark.once
def test_variables_changed_between_two_fits_of_a_run_are_named(tmp_path, capfd):
    model, other = build(), build(clear=False)
    for epochs, changed in enumerate([[], [model], [other], [model, other], []], 1):
        fit(model, Run(tmp_path / "run", resume=True), epochs=epochs)
        for each in changed:
            each.set_weights([weight * 0.5 for weight in each.get_weights()])
    said = re.findall("(.*?), .* since the last fit; the check", capfd.readouterr().err)
    assert said == [each.weights[0].op.name for each in (model, other, model)]


def test_options_of_compile_are_used_after_the_first_step_and_stay(tmp_path):
    options, traces = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    model = build()
    for given in ({"options": options, "run_metadata": traces}, {"options": options}, {}):
        model.compile(model.optimizer, "mse", **given)
        fit(model, Run(tmp_path / f"{len(given)}"), epochs=1)
        assert model.train_function.run_options is given.get("options")
    with pytest.raises(Killed):  # before a step
        fit(model, Run(tmp_path / "killed"), KilledAfter(epoch=0))
    assert traces.step_stats.dev_stats and model.train_function.run_options is None


class Limit(keras.callbacks.Callback):
    """Stops within an epoch, as for a time limit, at the first start only."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training |= self.left == 0


@pytest.mark.slow
@pytest.mark.parametrize("step", [9, *once(14, 15)])
def test_a_run_that_was_stopped_within_an_epoch_continues(step, tmp_path, capfd):
    whole = build()
    fit(whole, Limit(99), Run(tmp_path / "whole"))
    expected = states(whole)
    for limit in (step, 99):
        as_in_a_new_process()
        model = build()
        fit(model, Limit(limit), Run(tmp_path / "run", resume=True))
    assert states(model) == expected
    said = f"resume=True continues it after step {step}"
    assert capfd.readouterr().err.count(said) == 1
