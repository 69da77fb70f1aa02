"""Scripts with ``model.fit`` and ``Run``: results, stops, resume, refusals."""

import json
import warnings

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.callbacks import Run
from amp_xla.commands.predict import SavedOptions
from amp_xla.errors import AmpXlaError
from amp_xla.precision.optimizer import LossScaleOptimizer
from amp_xla.report import record
from amp_xla.report.page import render
from amp_xla.training import checkpoint
from tests.support.commands import Commands
from tests.support.horovod import on_two_ranks
from tests.support.killing import repeatable
from tests.support.precision_training import BERT4KERAS, same
from tests.support.running import ROOT
from tests.support.small_fit import Batches, KilledAfter, once, resumed, weights

pytestmark = pytest.mark.slow

optimizers = backend.bert4keras("optimizers")
snippets = backend.bert4keras("snippets")
ROWS = np.random.RandomState(0).randint(1, 30, [44, 8])
LABELS = (ROWS[:, 1:] == 7).any(1).astype("int32")[:, None]
EPOCHS, IN_ORDER = 3, Batches(8, (ROWS, LABELS))


class Generator(snippets.DataGenerator):
    def __iter__(self, random=False):
        rows = []
        for is_end, number in self.sample(random):
            rows.append(number)
            if len(rows) == self.batch_size or is_end:
                yield ROWS[rows], LABELS[rows]
                rows = []


def build(optimizer, dropout=0.0, scaled=True):
    """Return a small model with the same weights each time; the next run draws the same seed."""
    np.random.seed(5)
    K.clear_session()
    tf.set_random_seed(1)
    tokens = keras.layers.Input([8])
    vectors = keras.layers.Embedding(30, 8, name="Embedding-Token")(tokens)
    mean = keras.layers.Dropout(dropout)(keras.layers.GlobalAveragePooling1D()(vectors))
    model = keras.models.Model(tokens, keras.layers.Dense(2, activation="softmax")(mean))
    random = np.random.RandomState(3)
    model.set_weights([random.randn(*w.shape) * 0.1 for w in model.get_weights()])
    chosen = LossScaleOptimizer(optimizer(), 1024.0) if scaled else optimizer()
    model.compile(chosen, "sparse_categorical_crossentropy", ["accuracy"])
    return model


def callbacks(folder, rates):
    """Return callbacks of Keras that act within three epochs; ``rates`` adds those of the rate."""
    kind = keras.callbacks
    of_rate = [
        kind.LearningRateScheduler(lambda epoch, rate: rate * (0.5 if epoch else 1.0)),
        kind.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.3, min_lr=1e-6),
    ]
    return (of_rate if rates else []) + [
        kind.ModelCheckpoint(str(folder / "{epoch}.h5"), "val_loss", 0, True, True),
        kind.EarlyStopping("val_loss", min_delta=10.0, patience=2),
    ]


@pytest.mark.parametrize("name", ["rates", *once("states", "factor")])
def test_optimizers_and_callbacks_as_in_keras_and_after_a_kill(name, tmp_path):
    """Results are those of plain Keras in fp32; a killed run ends with the same bits."""

    def fit(model, others, place="ours"):
        (tmp_path / place).mkdir(exist_ok=True)
        return model.fit(
            IN_ORDER, epochs=9, validation_data=IN_ORDER[1], verbose=0, workers=0,
            callbacks=[*callbacks(tmp_path / place, name != "factor"), *others],
        ).history  # fmt: skip

    plain = build(BERT4KERAS[name], scaled=False)
    history, expected = fit(plain, [], "keras"), weights(plain)
    assert len(history["loss"]) == EPOCHS  # stopped early

    def trained(*callbacks):
        model = build(BERT4KERAS[name])
        fit(model, callbacks)
        return weights(model)

    whole, again = resumed(trained, tmp_path, KilledAfter(9))
    assert len(whole) == len(expected)
    for ours, kerases in zip(whole, expected):
        np.testing.assert_allclose(ours, kerases, rtol=2e-4, atol=2e-6)
    assert same(whole, again)
    names = {path.name for path in (tmp_path / "keras").iterdir()}
    assert names and {path.name for path in (tmp_path / "ours").iterdir()} == names
    dev = [line["dev_loss"] for line in repeatable(tmp_path / "whole/run") if line["kind"] == "dev"]
    np.testing.assert_allclose(dev, history["val_loss"], rtol=1e-4)


@pytest.mark.once
def test_bert4keras_accumulation_is_named(tmp_path, capfd):
    base = keras.optimizers.SGD
    accumulating = optimizers.extend_with_gradient_accumulation(base, name="Accumulating")
    model = build(lambda: accumulating(1e-2, grad_accum_steps=3), scaled=False)
    model.fit(IN_ORDER, epochs=1, verbose=0, callbacks=[Run(tmp_path / "run")])
    said = "two runs differ, and resuming is not exact; use LossScaleOptimizer(..., accumulate=3)"
    assert capfd.readouterr().err.count(said) == 1


def data(kind, model, others):
    """Fit on one kind of data."""
    generator = Generator(list(range(len(ROWS))), 8)
    how = {"epochs": EPOCHS, "verbose": 0, "callbacks": others}
    if kind == "weighted arrays":
        weight = np.linspace(0, 2, len(ROWS))
        arrays = (ROWS, LABELS)
        return model.fit(*arrays, sample_weight=weight, validation_split=0.2, **how)
    if kind == "parts of passes":
        return model.fit(generator.forfit(), steps_per_epoch=4, **how)
    with warnings.catch_warnings():  # TensorFlow 2 warns that fit does the same
        warnings.simplefilter("ignore")
        return model.fit_generator(generator.forfit(), len(generator), **how)


@pytest.mark.parametrize("kind", ["parts of passes", *once("weighted arrays", "passes")])
def test_all_kinds_of_data_and_dropout_are_exact_after_a_kill(kind, tmp_path):
    def trained(*callbacks):
        model = build(lambda: optimizers.Adam(1e-2), dropout=0.3)
        data(kind, model, list(callbacks))
        return weights(model)

    kill = KilledAfter(5 if kind == "weighted arrays" else 7)
    whole, again = resumed(trained, tmp_path, kill)
    assert same(whole, again)
    assert repeatable(tmp_path / "whole/run") == repeatable(tmp_path / "killed-0/run")


@pytest.fixture(scope="module")
def script(server):
    """Return a function that runs ``fitted_script`` in a process and returns its output."""

    def run(folder, *words, code=0, before=""):
        folder.mkdir(exist_ok=True)
        file = str(ROOT / "tests/callbacks/fitted_script.py")
        job = {"script": file, "argv": [str(folder), *words], "code": before}
        done = Commands(server, folder).job(job)
        assert done.code == code, done.out + done.err
        return done.err

    return run


def tensors(folder):
    newest = checkpoint.newest(folder / "run/checkpoints")
    assert newest.step == 30
    return newest.tensors()


def test_a_stopped_script_continues_to_the_same_bits(script, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    err = script(whole)
    executed = json.loads((whole / "run/executed.json").read_text())
    assert executed["half_dtype"] == (backend.half_dtype()[0] or "")
    half, nodes = executed["half_nodes"], executed["nodes"]
    said = [line for line in err.splitlines() if line.startswith("first step ran: ")]
    expected = (
        f"of {nodes} executed nodes are" if half else "as expected for precision amp (float32"
    )
    assert len(said) == 1 and f"{half or 'none'} of " in said[0] and expected in said[0]
    assert f"report: {whole}/run/report.html" in err
    epochs = json.loads((whole / "seen-0.json").read_text())["epochs"]
    assert [(e["loss_scale"], e["skipped_steps"]) for e in epochs] == [(2.0**15, 0)] * 3
    dev = [line for line in repeatable(whole / "run") if line["kind"] == "dev"]
    assert [line["step"] for line in dev] == [10, 20, 30]
    assert dev[-1]["dev_loss"] == pytest.approx(epochs[2]["val_loss"])
    assert not (whole / "latest").exists()

    said = script(stopped, "stop", code=143)
    assert "stopped by SIGTERM after step 14; resume=True continues from there" in said
    with pytest.raises(AmpXlaError, match="choose another folder, continue it with resume=True"):
        Run(stopped / "run")
    assert "the same script with resume=True continues" in render([record.read(stopped / "run")])
    with pytest.raises(AmpXlaError, match="only the script can build its model"):
        SavedOptions().load(str(stopped / "run"))
    assert "resumed from step-00000014: step 14, epoch 2, " in script(stopped, "resume")
    # The callback's list is restored, and the means of the second epoch are over all its steps.
    assert json.loads((stopped / "seen-0.json").read_text())["epochs"] == epochs
    found, expected = tensors(stopped), tensors(whole)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert repeatable(stopped / "run") == repeatable(whole / "run")


@pytest.mark.once
@pytest.mark.horovod
@pytest.mark.timeout(1500)
def test_two_ranks_train_like_one_and_resume_to_the_same_bits(script, tmp_path):
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    script(alone, before="from amp_xla import setup; setup.configure(precision='fp32')")
    ranks.mkdir()
    output = on_two_ranks("tests.callbacks.fitted_script", ranks, "all", AMP_XLA_PRECISION="fp32")
    assert "SGD averages no gradients; compile with optimizer=LossScaleOptimizer(" in output
    assert "stopped by SIGTERM after step" in output and "resumed from step-00000014" in output

    def final(folder, rank=0):
        with np.load(str(folder / f"weights-{rank}.npz")) as arrays:
            return [arrays[key] for key in arrays.files]

    def drawn(folder):
        return [json.loads((folder / f"seen-{r}.json").read_text())["drawn"] for r in (0, 1)]

    def losses(folder, rank=0):
        epochs = json.loads((folder / f"seen-{rank}.json").read_text())["epochs"]
        return [epoch["loss"] for epoch in epochs]

    whole = ranks / "whole"
    assert same(final(whole), final(whole, 1)) and losses(whole) == losses(whole, 1)
    for ours, one in zip(final(whole), final(alone)):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-6)
    assert losses(whole) == pytest.approx(losses(alone), rel=1e-3)
    assert same(final(ranks), final(whole))
    assert drawn(ranks) == drawn(whole) and len(set(drawn(whole))) == 2
