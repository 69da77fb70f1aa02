"""recipes/jax_classification.py: training, kill and resume, several processes, prediction."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from amp_xla.training import checkpoint
from recipes import jax_classification as recipe
from tests.integration.killing import repeatable, state
from tests.jax import small

pytestmark = [pytest.mark.jax, pytest.mark.slow]

RUNS = Path("runs") / "jax_classification"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("runs")
    small.corpus(found)
    return found


HALF = ("--policy", "p=f32,c=f16,o=f32", "--loss-scale", "dynamic")


@pytest.fixture(scope="module")
def whole(folder):
    """A run in float16 with a dynamic loss scale."""
    small.train(folder, "--name", "whole", *HALF)
    return folder / RUNS / "whole"


def arrays(run):
    """Return the arrays of the last checkpoint by name."""
    newest = checkpoint.newest(run / "checkpoints")
    assert newest is not None
    return newest.tensors()


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
    words = ("--name", "whole", "--resume", "--policy", "c=bf16,o=f32", "--loss-scale", "dynamic")
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


def dependencies(names):
    """Return the names of packages and of all that they need."""
    found, names = set(), list(names)
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in found:
            found.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # other systems'
                lines = importlib.metadata.requires(name) or ()
                names += [re.match(r"[\w.-]+", x)[0] for x in lines if "extra ==" not in x]
    return found


def test_few_packages_are_enough(folder, tmp_path):
    """The recipe, its predictions and its rows of the GPU benchmark; report.html needs jinja2."""
    allowed = dependencies("jax numpy optax safetensors tokenizers tyro".split())
    absent = [
        name
        for name, owners in importlib.metadata.packages_distributions().items()
        if not allowed & {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}
    ]
    assert {"jinja2", "pytest", "jmp"} <= set(absent)
    code = f"import sys\nsys.modules.update(dict.fromkeys({absent + ['tensorflow']}))\n"
    (tmp_path / "sitecustomize.py").write_text(code)  # also in the processes of the benchmark
    paths = {"PYTHONPATH": f"{tmp_path}:{small.ROOT}"}
    small.train(folder, "--name", "few", "--epochs", "1", **paths)
    (folder / "few.txt").write_text("x y zed x\n")
    said = small.run(folder, "-m", "amp_xla", "predict", str(RUNS / "few"), "few.txt", **paths)
    assert re.search("^[ab]\t", said, re.MULTILINE)
    words = ("-m", "benchmarks.gpu", "--trial", "--steps", "2", "--out", "few/gpu", "--only")
    said = small.run(folder, *words, "JAX bf16, cuDNN", **paths)
    assert "JAX bf16, cuDNN attention, batch 4: ok" in said


def test_two_processes_are_one(folder):
    one_epoch = ("--epochs", "1", "--name")
    small.train(folder, *one_epoch, "one", **small.CPU)
    words = ["-m", "recipes.jax_classification", *small.FLAGS, *one_epoch, "two"]
    first, second = small.together(folder, words)
    assert "2 processes" in first and "step 5/" not in second  # one speaks
    one, two = arrays(folder / RUNS / "one"), arrays(folder / RUNS / "two")
    worst = max(np.abs(np.float64(one[n]) - np.float64(two[n])).max() for n in one)
    assert worst < 1e-5
    for a, b in zip(repeatable(folder / RUNS / "one"), repeatable(folder / RUNS / "two")):
        assert a.pop("kind") == b.pop("kind")
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)


def test_a_batch_that_devices_cannot_share_is_refused(folder):
    flags = "--xla_force_host_platform_device_count=3"
    said = small.train(folder, code=2, XLA_FLAGS=flags, **small.CPU)
    assert "error: --batch-size 8 cannot be shared by 3 devices; allowed is a multiple of 3" in said
