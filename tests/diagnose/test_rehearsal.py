"""rehearse: planted overflows and underflows are found and named; the loss scale is the model's."""

import itertools
import json
import math

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.backend import K, keras, tf
from amp_xla.diagnose import overflow, rehearsal, rehearse
from amp_xla.diagnose.node_origins import NodeOrigins
from amp_xla.diagnose.report_text import si
from amp_xla.graph import training_graph
from amp_xla.precision.compat.keras import set_policy
from amp_xla.precision.optimizer import LossScaleOptimizer
from tests.support import heads
from tests.support.commands import CLI, RECIPE, Commands

FEATURES, CLASSES, BATCH = 16, 4, 8


def planted(forward=(), backward=(), scale=0):
    """Return First -> Planted -> Second -> Classes in a new graph; ``Planted`` multiplies.

    It multiplies by several factors, because one beyond float16's range would be infinite or zero.
    """
    K.clear_session()
    tf.set_random_seed(1)

    def times(x, factors):
        for factor in factors:
            # Without `abs` constant folding would merge two factors into one.
            x = tf.abs(x) * factor
        return x

    @tf.custom_gradient
    def multiplied(x):
        return times(tf.identity(x), forward), lambda gradient: times(gradient, backward)

    inputs = keras.layers.Input((FEATURES,), name="Features")
    x = keras.layers.Dense(32, name="First")(inputs)
    x = keras.layers.Lambda(multiplied, name="Planted")(x)
    x = keras.layers.Dense(32, name="Second")(x)
    output = keras.layers.Dense(CLASSES, activation="softmax", name="Classes")(x)
    built = keras.models.Model(inputs, output)
    sgd = keras.optimizers.SGD(0.01)
    built.compile(LossScaleOptimizer(sgd, scale) if scale else sgd, "categorical_crossentropy")
    backend.session()
    return built


def batches():
    """Batches without end."""
    random = np.random.RandomState(0)
    while True:
        labels = random.randint(0, CLASSES, BATCH)
        yield [random.randn(BATCH, FEATURES).astype(np.float32), np.eye(CLASSES)[labels]]


def rehearsed(steps=3, **plant):
    report = rehearse(planted(**plant), batches(), steps)
    json.dumps(report.to_json(), allow_nan=False)
    return report


def test_the_source_may_be_in_a_folder_named_as_a_library():
    for folder in ("tensorflow", "keras/src", "opt/tensorflow/lib/site-packages/my"):
        with tf.Graph().as_default() as graph:
            exec(compile("tf.zeros([], name='x')", f"/me/{folder}/train.py", "exec"), {"tf": tf})
        training = training_graph.TrainingGraph(graph, {}, {}, "x", (), (), "", None, {})
        assert "train.py:1 in <module>" in NodeOrigins(training).source("x")


def layer(report, name):
    return next(entry for entry in report.layers if entry.layer == name)


@pytest.mark.parametrize("phase, factors, problem, remedy", [
    pytest.param("forward", (1e3, 1e3), "and float16 ends at 65504", "times what float16 holds",
                 marks=pytest.mark.once),
    pytest.param("forward", (1e6,), "a constant of 1e+06 is infinite in",
                 "replace the constant 1e+06", marks=[pytest.mark.slow, pytest.mark.once]),
    pytest.param("backward", (1e4, 1e4), "and float16 ends at 65504",
                 "keep all Mul nodes in float32", marks=pytest.mark.slow),
])  # fmt: skip
def test_overflows(phase, factors, problem, remedy):
    report = rehearsed(**{phase: factors})
    finding = report.finding
    assert finding and (finding.layer, finding.phase, finding.op) == ("Planted", phase, "Mul")
    assert finding.half and not finding.float32_too
    assert problem in finding.problem and remedy in finding.remedies[0]
    assert "_ADD=Mul" in finding.remedies[-1]
    assert len(report.steps) == 1  # the first step fails, and the rehearsal ends
    assert "first non-finite node: " in str(report)
    if phase == "forward":
        assert "x = tf.abs(x) * factor" in finding.source
        assert layer(report, "Planted").largest_activation > 1.0


def test_an_overflow_under_a_keras_policy():
    set_policy("mixed_float16")
    try:
        training = training_graph.view(planted(forward=(1e3, 1e3)))
    finally:
        set_policy("float32")
    finding = overflow.replay(training, None, training.values(), next(batches()), 0)
    assert finding and (finding.layer, finding.phase, finding.op) == ("Planted", "forward", "Mul")
    assert finding.half and not finding.float32_too and math.isfinite(finding.float32_loss)
    assert finding.remedies[-1] == "keep the layer Planted in float32: give it dtype='float32'"


@pytest.mark.once
def test_an_infinite_mask_or_bound_is_no_cause():
    head = heads.build("classifier")
    last = head.model.layers[-1]
    last.set_weights([weights * np.nan for weights in last.get_weights()])
    finding = rehearse(head.model, itertools.repeat(head.batch), 1).finding
    assert finding and finding.float32_too and finding.layer == last.name


def test_too_small_and_too_large_loss_scales():
    report = rehearsed(backward=(1e-2, 1e-5))
    assert report.finding is None and report.loss_scale == 1.0
    assert layer(report, "Planted").backward_lost > 0.2
    # The gradients of the weights below it: zero at scale 1, but not at the suggested scale.
    first = layer(report, "First")
    assert first.gradients_lost > 0.5 and first.gradient_error > 0.5
    assert report.suggested_loss_scale >= 1024
    assert first.gradients_lost_then < 0.01 and layer(report, "Second").gradients_lost == 0.0
    assert f"suggested constant loss scale: {report.suggested_loss_scale:g} (now 1)" in str(report)
    for error, relative in {0.0: 0.0, 4.0: math.inf, math.nan: math.inf}.items():  # float32 has 0
        assert rehearsal._errors(np.array([[error, 0.0, 0.0, 0.0]])) == (relative, 0.0)
    assert [si(x) for x in (999.6, 999_600, 1234567, 2e15)] == ["1 k", "1 M", "1.23 M", "2 P"]
    finding = rehearsed(1, scale=2.0**30).finding
    assert finding is not None and "scale from 1.07374e+09 to" in finding.remedies[0]


def test_the_batches_of_fit_are_taken_as_fit_takes_them():
    head = heads.build("classifier")
    batch = (head.arrays[:2], head.arrays[2][:, 0])  # Keras makes columns of flat labels
    report = rehearse(head.model, itertools.repeat(batch), 1)
    # No dropout here, so that Keras' own step has the same loss.
    assert report.steps[0].float32_loss == pytest.approx(head.model.train_on_batch(*batch), 1e-4)
    assert report.worst_difference < 1e-2


HEADS = "--layers 1 --hidden 64 --max-length 32 --shapes 1 --batch-size 16 --vocab-size 200"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tagging", "relations", "reading"])
def test_heads_of_tasks_are_finite_in_float16_on_padded_batches(server, tmp_path, recipe):
    """With the lists of NVIDIA's TensorFlow where it is 1.15; a tagger's head is a CRF."""
    words = ("rehearse", "--recipe", recipe, "--steps", "2", "--", *HEADS.split())
    done = Commands(server, tmp_path)(CLI, *words)
    assert done.code == 0 and "suggested constant loss scale" in done.out, done.out + done.err


# After the first update the weights are so large that their squares are beyond float32.
FLAGS = (
    "--train a.tsv --dev a.tsv --layers 1 --hidden 64 --epochs 1 --batch-size 8 --precision fp32 "
    "--learning-rate 1e30 --warmup 0 --name run --on-nonfinite stop"
).split()


def test_the_report_names_the_node_and_the_batch_is_kept(server, tmp_path):
    lines = [f"word{i % 7} other{i % 5} text\tabc{i % 3}\n" for i in range(40)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    done = Commands(server, tmp_path)(RECIPE, *FLAGS)
    assert done.code == 2, done.err
    said = done.out + done.err
    assert said.count("first non-finite node: ") == 1
    run = tmp_path / "runs" / "classification" / "run"
    folder = run / "nonfinite-00000001"
    assert [path.name for path in run.glob("nonfinite-*")] == [folder.name]
    assert f"report and batch: runs/classification/run/{folder.name}" in said
    report = json.loads((folder / "report.json").read_text())
    assert report["node"] in said
    assert (report["step"], report["phase"], report["loss_scale"]) == (1, "forward", 1.0)
    assert report["output"]["infinite"] + report["output"]["nan"] >= 1
    assert all(i["range"]["infinite"] + i["range"]["nan"] == 0 for i in report["inputs"])
    assert report["layer"].startswith(("Embedding", "Transformer"))
    assert report["float32_too"] is True
    assert any("lower the learning rate" in remedy for remedy in report["remedies"])
    assert (folder / "report.txt").read_text().strip() in said
    batch = np.load(str(folder / "batch.npz"))
    assert batch["token_ids"].shape[0] == 8
    assert set(batch["labels"]) <= {0, 1, 2}
