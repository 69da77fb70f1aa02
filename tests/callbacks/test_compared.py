"""What a resumed ``fit`` compares with its checkpoint, and refusals of ``Run``."""

import os
import re

import numpy as np
import pytest

from amp_xla.backend import keras
from amp_xla.callbacks import Run
from amp_xla.errors import AmpXlaError
from amp_xla.report import record
from amp_xla.training import checkpoint
from tests.support.small_fit import Batches, X, Y, build, fit, once, states


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return the folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    fit(build(), Run(folder), epochs=1)
    return folder


DIFFERENT = [
    ({"activation": "relu"}, {}, "layer dense activation: tanh in the checkpoint, relu now"),
    ({"rate": 1e-5}, {}, "learning_rate: 0.0"),
]
ONCE = [
    ({"dropout": 0.5}, {}, "layer dropout rate: 0.2 in the checkpoint, 0.5 now"),
    ({"scale": 10.0}, {}, "optimizer loss_scale "),
    ({"loss": "mae"}, {}, "loss: mse in the checkpoint, mae now"),
    ({}, {"batch_size": 2}, "data batch_size: 4 in the checkpoint, 2 now"),
    ({}, {"y": 1 - Y}, "data arrays: "),
    ({}, {"x": X[:25], "y": Y[:25]}, "data arrays: "),
    ({}, {"shuffle": False}, "data shuffle: True in the checkpoint, False now"),
    ({}, {"class_weight": {0: 1.0, 1: 2.0}}, "class_weight"),
    ({}, {"x": Batches(4), "y": None, "batch_size": None}, "data batches: absent"),
]  # fmt: skip


@pytest.mark.parametrize("model, given, words", [*DIFFERENT, *once(*ONCE)])
def test_a_resume_names_what_differs(ended, model, given, words):
    before = sorted(path.name for path in ended.rglob("*"))
    with pytest.raises(AmpXlaError) as error:
        fit(build(**model), Run(ended, resume=True), **given)
    assert words in str(error.value) and "force_resume=True" in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in ended.rglob("*")) == before


@pytest.mark.once
@pytest.mark.parametrize("changed", [{"size": 2}, {"arrays": (X, 1 - Y)}])
def test_a_sequence_is_compared_by_length_and_first_batch(changed, tmp_path):
    sequence = {"y": None, "batch_size": None, "epochs": 1}
    fit(build(), Run(tmp_path / "run"), x=Batches(4), **sequence)
    with pytest.raises(AmpXlaError, match="data (batches|first batch): "):
        fit(build(), Run(tmp_path / "run", resume=True), x=Batches(**{"size": 4, **changed}),
            **{**sequence, "epochs": 2})  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("changed", [[0.3, 1.0], {"a": 0.3}, None])
def test_loss_weights_are_compared(changed, tmp_path):
    def trained(weights, resume):
        keras.backend.clear_session()
        inputs = keras.layers.Input([4])
        outputs = [keras.layers.Dense(1, name=name)(inputs) for name in "ab"]
        model = keras.models.Model(inputs, outputs)
        model.compile("adam", "mse", loss_weights=weights)
        fit(model, Run(tmp_path / "run", resume=resume), y=[Y, Y], epochs=1 + resume)

    trained({"a": 1.0, "b": 0.3}, False)
    trained({"a": 1.0, "b": 0.3}, True)
    with pytest.raises(AmpXlaError, match="script's loss_weights"):
        trained(changed, True)


@pytest.mark.once
def test_force_resume_continues_with_what_differs(tmp_path):
    fit(build(), Run(tmp_path / "run"), epochs=1)
    forced = build(activation="relu")
    history = fit(forced, Run(tmp_path / "run", resume=True, force_resume=True), epochs=3)
    assert len(history["loss"]) == 2


@pytest.mark.once
def test_a_folder_in_a_loop_is_an_error_that_names_folds(tmp_path):
    def trained(fold, epochs=1):
        train = np.arange(len(X)) % 3 != fold
        run = Run(tmp_path / "run", resume=True)
        return fit(build(), run, x=X[train], y=Y[train], epochs=epochs)["loss"]

    trained(0)
    for fold in (1, 2, 0):  # the last is the first data again, as over seeds
        with pytest.raises(AmpXlaError, match="such as over folds, give each run another folder"):
            trained(fold)
    assert len(trained(0, epochs=2)) == 1  # more epochs continue


@pytest.mark.once
def test_a_model_built_twice_is_one_short_line_that_names_clear_session(ended):
    build()
    with pytest.raises(AmpXlaError, match="has dense/.* this model has dense_.*clear_session") as e:
        fit(build(clear=False, activation="relu"), Run(ended, resume=True))
    assert len(str(e.value).replace(str(ended), "")) < 300


@pytest.mark.once
@pytest.mark.parametrize("append", [True, False])
def test_a_csv_logger_that_loses_rows_is_named_and_another_is_not(append, tmp_path, capfd):
    for epochs in (1, 3):
        log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=append)
        fit(build(), log, Run(tmp_path / "run", resume=True), epochs=epochs)
    said = capfd.readouterr().err
    assert said.count("CSVLogger without append=True empties") == 2 * (not append)
    assert "not exact" not in said
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + 2 + append


@pytest.mark.once
def test_the_place_of_the_folder(tmp_path, monkeypatch):
    """``~`` is the home folder; a relative path belongs to the folder in which Run was made."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("home", "one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    runs = Run("~/runs/a"), Run("runs/b")
    os.chdir(str(tmp_path / "other"))
    for run in runs:
        fit(build(), run, epochs=1)
    assert (tmp_path / "home/runs/a/metrics.jsonl").is_file()
    assert (tmp_path / "one/runs/b/metrics.jsonl").is_file()
    assert not any((tmp_path / "other").iterdir())


@pytest.mark.once
def test_an_unused_run_locks_nothing(tmp_path):
    """A run that was started meanwhile keeps its checkpoints."""
    folder = tmp_path / "run"
    early = Run(folder, resume=True), Run(folder)
    assert not folder.exists()
    fit(build(), Run(folder), epochs=1)
    expected = sorted(path.name for path in (folder / "checkpoints").iterdir())
    with pytest.raises(AmpXlaError, match="already holds a run"):
        fit(build(), early[1], epochs=1)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == expected
    whole = build()
    fit(whole, Run(tmp_path / "whole"), epochs=2)
    bits, again = states(whole), build()
    fit(again, early[0], epochs=2)
    assert states(again) == bits


@pytest.mark.once
def test_one_run_in_a_list_and_its_arguments(tmp_path):
    for wrong, words in (
        ({"keep": 0}, "keep=0: allowed is a whole number, 1 or more"),
        ({"checkpoint_every": -1}, "checkpoint_every=-1: allowed is a whole number, 0 or more"),
        ({"on_nonfinite": "halt"}, "on_nonfinite='halt': allowed is skip, report, stop"),
    ):
        with pytest.raises(AmpXlaError, match=words):
            Run(tmp_path / "run", **wrong)
    model, run = build(), Run(tmp_path / "run")
    given = {"x": X, "y": Y, "verbose": 0}
    with pytest.raises(AmpXlaError, match=r"give a list, callbacks=\[Run\(\.\.\.\)\]"):
        model.fit(callbacks=run, **given)
    with pytest.raises(AmpXlaError, match="callbacks has 2 Run callbacks; allowed: one"):
        model.fit(callbacks=[run, Run(tmp_path / "other")], **given)
    model.fit(callbacks=(run,), **given)
    with pytest.raises(AmpXlaError, match="has ended; create a new Run for another fit"):
        model.fit(callbacks=[run], **given)
    inner = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: model.fit(callbacks=[Run(tmp_path / "inner")], **given)
    )
    with pytest.raises(AmpXlaError, match="a fit of this model is running with a Run"):
        model.fit(callbacks=[Run(tmp_path / "outer"), inner], **given)


class Writes(keras.callbacks.Callback):
    """An evaluator of a script, which writes a score every second epoch, or never."""

    def __init__(self, every):
        super().__init__()
        self.every = every

    def on_epoch_end(self, epoch, logs=None):
        if epoch % self.every == self.every - 1:
            logs["val_f1"] = 0.1 * epoch


@pytest.mark.parametrize("monitor", ["val_accuracy", "acc"])
def test_both_names_of_the_accuracy_are_allowed(monitor, tmp_path):
    fit(build(), Run(tmp_path / "run", monitor=monitor), epochs=1, validation_data=(X, Y))
    read = record.read(tmp_path / "run")
    assert read.monitor in ("dev_acc", "dev_accuracy") and read.best_step == 7


@pytest.mark.parametrize("monitor, given, allowed", [
    ("val_f1", {"validation_data": (X, Y)}, "allowed: val_loss, val_acc"),
    ("val_lose", {"validation_split": 0.5}, "allowed: val_loss, val_acc"),
    ("val_loss", {}, "pass validation_data to fit"),
])  # fmt: skip
def test_a_monitor_that_nothing_writes_is_refused_before_training(
    monitor, given, allowed, tmp_path
):
    with pytest.raises(AmpXlaError) as error:
        fit(build(), Run(tmp_path / "run", monitor=monitor), **given)
    assert f"monitor='{monitor}'" in str(error.value) and allowed in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.once
def test_a_monitor_that_comes_late_or_never_loses_no_checkpoint(tmp_path, capfd):
    given = {"validation_data": (X, Y), "epochs": 4}
    writes = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(val_f1=0.1)
    )
    fit(build(), writes, Run(tmp_path / "lambda", monitor="val_f1"), **given)
    fit(build(), Writes(2), Run(tmp_path / "late", monitor="val_f1"), **given)
    assert checkpoint.newest(tmp_path / "late/checkpoints").loop.best == pytest.approx(0.3)
    with pytest.raises(AmpXlaError, match=r"monitor='val_f1'\): the epoch logs have no such value"):
        fit(build(), Writes(9), Run(tmp_path / "never", monitor="val_f1"), **given)
    assert checkpoint.newest(tmp_path / "never/checkpoints").step == 28
    fit(build(), Run(tmp_path / "nan"), validation_data=(X, Y * np.nan), epochs=2)
    said = re.findall("dev (.*): no checkpoint is marked as the best", capfd.readouterr().err)
    assert said == ["f1 is missing", "f1 is missing", "loss is nan"]
