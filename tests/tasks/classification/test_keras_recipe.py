"""recipes/keras_classification.py: training, kill and resume, prediction, refusals."""

from __future__ import annotations

import json

import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.support import small_jax as small
from tests.support.commands import FP32, PREDICT
from tests.support.killing import repeatable, state

RECIPE = "recipes.keras_classification"
HALF = ["--policy", "mixed_float16", "--loss-scale", "dynamic", "--checkpoint-every", "7"]
HALF += ["--keep", "99"]

pytestmark = pytest.mark.slow
on_tf2 = pytest.mark.skipif(backend.kind() == "tf1", reason="TensorFlow 1.15 has no such policies")


@pytest.fixture(scope="module")
def command(command):
    small.corpus(command.folder)
    return command


@pytest.fixture(scope="module")
def whole(command):
    """Train without interruption in float16 with a dynamic loss scale; return the run folder."""
    command.done(RECIPE, *small.FLAGS, "--name", "whole", *HALF)
    return command.folder / "runs" / "keras_classification" / "whole"


@on_tf2
def test_it_learns_and_leaves_the_run_folder_of_the_other_recipes(whole):
    lines = repeatable(whole)
    assert lines[-1]["dev_accuracy"] > 0.85 and lines[-1]["step"] == 45
    trained = [line for line in lines if "loss" in line]
    assert len(trained) == 9 and trained[-1]["loss"] < trained[0]["loss"]
    assert trained[-1]["loss_scale"] == 2.0**15 and trained[-1]["applied_steps"] == 45
    assert trained[0]["learning_rate"] == pytest.approx(5e-4 * 41 / 42)  # peak at 4, of 45
    assert {"config.json", "run.json", "vocab.txt", "labels.json", "executed.json"} <= {
        path.name for path in whole.iterdir()
    }
    executed = json.loads((whole / "executed.json").read_text())
    # A CPU with float16 instructions executes oneDNN's _MklMatMul.
    products = [op for op in executed["half_ops"] if op.endswith("MatMul")]
    assert executed["half_dtype"] == "float16" and products
    newest = checkpoint.newest(whole / "checkpoints")
    assert newest is not None
    assert {value.dtype.name for value in newest.tensors().values()} == {"float32", "int64"}


@on_tf2
def test_predict(whole, command):
    (command.folder / "texts.txt").write_text("x y zed x\n\np q r r\n")
    done = command(PREDICT, "--run", whole, "--file", "texts.txt")
    assert [line[:1] for line in done.out.splitlines()] == ["a", "", "b"], done.err


@on_tf2
def test_resumed_it_ends_with_the_same_bits(command, whole):
    assert state(command.resumed(RECIPE, whole, 20, *small.FLAGS, *HALF)) == state(whole)


@on_tf2
def test_the_first_non_finite_node_is_named_and_a_variable_chooses_the_policy(command):
    words = ["--learning-rate", "1e30", "--warmup", "0", "--on-nonfinite", "stop"]
    done = command(RECIPE, *small.FLAGS, "--name", "huge", *words, code=FP32)
    assert done.code == 2, done.err
    said = done.err
    assert "Keras policy float32, loss scale 1.0" in said and "none of" in said
    assert "first non-finite node: " in said and "lower the learning rate" in said


@pytest.mark.skipif(backend.kind() == "tf2", reason="TensorFlow 2 has the policies")
def test_tensorflow_1_is_refused_with_advice(command):
    said = command(RECIPE, *small.FLAGS).error
    assert "RUNTIME=tf2, or stay here with RECIPE=classification" in said
    assert not (command.folder / "runs").exists()
