"""recipes/jax_classification.py: training, kill and resume, prediction, export."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from amp_xla.training import checkpoint
from recipes import jax_classification as recipe
from tests.support import small_jax as small
from tests.support.killing import repeatable, state
from tests.support.small_jax import RUNS

pytestmark = [pytest.mark.jax, pytest.mark.slow]

# Two programs, one per shape, are compiled in these runs only: it takes most of their time.
HALF = ("--policy", "p=f32,c=f16,o=f32", "--loss-scale", "dynamic", "--shapes", "2")


@pytest.fixture(scope="module")
def whole(folder):
    """A run in float16 with a dynamic loss scale."""
    small.train(folder, "--name", "whole", *HALF)
    return folder / RUNS / "whole"


def test_it_learns_and_leaves_a_run_folder(whole):
    lines = repeatable(whole)
    assert lines[-1]["dev_accuracy"] > 0.85 and lines[-1]["step"] == 45
    trained = [line for line in lines if "loss" in line]
    assert len(trained) == 9 and trained[-1]["loss"] < trained[0]["loss"]
    assert trained[-1]["loss_scale"] == 2.0**15 and trained[-1]["applied_steps"] == 45
    assert {"config.json", "run.json", "vocab.txt", "labels.json", "bert_config.json"} <= {
        path.name for path in whole.iterdir()
    }
    assert "Policy p=full,c=f16,o=full" in (whole / "report.html").read_text()


def test_predict_and_verify(whole, folder):
    (folder / "texts.txt").write_text("x y zed x\n\np q r r\n")
    said = small.run(folder, "-m", "amp_xla", "predict", "--run", str(whole), "--file", "texts.txt")
    assert [line[:1] for line in said.splitlines()] == ["a", "", "b"]
    assert "whole" in small.run(folder, "-m", "amp_xla", "verify", "--run", str(whole))


def test_it_is_exported_for_hugging_face(whole, folder):
    words = ("-m", "amp_xla", "export", str(whole), "--to", "exported", "--format")
    assert "head.safetensors" in small.run(folder, *words, "hf")
    weights = load_file(str(folder / "exported" / "model.safetensors"))
    trained = checkpoint.find(whole).tensors()
    np.testing.assert_array_equal(
        weights["embeddings.word_embeddings.weight"], trained[".model.bert.tokens"]
    )
    assert "allows only --format hf" in small.run(
        folder, *words[:-2], "no", "--format", "onnx", code=2
    )


def test_killed_and_resumed_bitwise(folder, whole):
    words = [*small.FLAGS, "--name", "killed", *HALF, "--checkpoint-every", "7"]
    small.run(folder, "-c", small.KILLED, recipe.__name__, *words, code=-9)
    said = small.train(folder, "--name", "killed", *HALF, "--resume")
    assert "resumed from step-" in said
    assert state(folder / RUNS / "killed") == state(whole)


def test_a_resume_with_another_policy_is_refused(folder, whole):
    words = ("--name", "whole", "--resume", *HALF, "--policy", "c=bf16,o=f32")
    said = small.train(folder, *words, code=2)
    assert "differs from this command: setting" in said and "setting policy:" in said


def test_a_skipped_step_is_reported_once(folder):
    # Gradients overflow in float16 at this loss scale, weights and logits do not.
    words = ("--policy", "p=f32,c=f16,o=f32", "--loss-scale", "1e30", "--epochs", "1")
    said = small.train(folder, "--name", "overflow", *words, "--on-nonfinite", "report")
    assert said.count("not finite, skipped;") == 1
    assert "step 0: loss " in said and "gradients overflow at loss scale 1e+30" in said
    report = folder / RUNS / "overflow" / "nonfinite-00000000"
    assert json.loads((report / "report.json").read_text())["step"] == 0
    assert np.load(str(report / "batch.npz"))["token_ids"].shape[0] == 8
    last = repeatable(folder / RUNS / "overflow")[-2]
    assert (last["skipped_steps"], last["applied_steps"]) == (15, 0)
