"""The classification recipe as users run it: real processes, small data made here."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.running import ROOT, environment, run_python

TINY = (
    "--layers", "1", "--hidden", "64", "--max-length", "24", "--shapes", "2", "--batch-size", "16",
    "--learning-rate", "2e-3", "--vocab-size", "200", "--log-every", "5", "--seed", "3",
)  # fmt: skip
WORDS = {
    "weather": ["rain", "wind", "snow", "sun", "cloud", "storm", "frost"],
    "kitchen": ["soup", "bread", "pan", "salt", "oven", "knife", "stove"],
}


def write_corpus(path: Path, samples: int, seed: int) -> Path:
    rng = random.Random(seed)
    lines = []
    for _ in range(samples):
        label = rng.choice(sorted(WORDS))
        words = [rng.choice(WORDS[label] + ["the", "a", "with"]) for _ in range(rng.randint(3, 18))]
        lines.append(f"{' '.join(words)}\t{label}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("classification")
    write_corpus(path / "train.tsv", 400, 1)
    write_corpus(path / "dev.tsv", 80, 2)
    return path


def recipe(folder, *flags, env=None):
    words = ("-m", "recipes.classification", "--train", "train.tsv", "--dev", "dev.tsv", *TINY)
    return run_python(*words, *flags, env=env, cwd=folder)


@pytest.fixture(scope="module")
def trained(folder):
    result = recipe(folder, "--epochs", "3", "--name", "good")
    assert result.code == 0, result.err
    return folder / "runs" / "classification" / "good", result


def test_an_update_of_three_batches_and_layers_computed_again(folder):
    flags = ("--layers", "2", "--epochs", "1", "--name", "recomputed", "--log-every", "1")
    result = recipe(folder, *flags, "--accumulate", "3", "--recompute")
    assert result.code == 0, result.err
    lines = (folder / "runs/classification/recomputed/metrics.jsonl").read_text().splitlines()
    logged = [line for line in map(json.loads, lines) if "loss" in line]
    assert [line["step"] for line in logged] == list(range(1, len(logged) + 1))
    assert logged[-1]["applied_steps"] == len(logged) == 9  # 400 texts, 48 per update


def test_learns_and_leaves_a_complete_run_folder(trained):
    run, result = trained
    assert "best dev accuracy" in result.err
    assert float(result.err.split("best dev accuracy ")[1].split()[0]) >= 0.95
    assert json.loads((run / "config.json").read_text())["hidden"] == 64
    process = json.loads((run / "run.json").read_text())
    assert process["recipe"] == "classification" and process["tensorflow"]
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in logged if "loss" in line]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {"samples", "learning_rate", "loss_scale", "skipped_steps"} <= set(steps[0])
    assert [line["dev_accuracy"] for line in logged if "dev_accuracy" in line]
    assert list(run.glob("events.out.tfevents.*"))
    assert (run / "vocab.txt").read_text().startswith("[PAD]\n")
    assert checkpoint.best(run / "checkpoints") is not None


def test_says_what_precision_means_on_this_machine(trained):
    run, result = trained
    half, why = backend.half_dtype()
    executed = json.loads((run / "executed.json").read_text())
    assert (executed["half_nodes"] > 0) == (half is not None)
    assert executed["half_dtype"] == (half or "")
    assert f"precision amp ({half or 'float32'}: " in result.err
    assert why in result.err


def test_prints_no_wall_of_warnings(trained):
    lines = trained[1].err.splitlines()
    noise = [line for line in lines if "tensorflow/" in line or "Warning" in line]
    assert noise == [] and len(lines) < 60


@pytest.mark.parametrize("by_file", [pytest.param(True, marks=pytest.mark.slow), False])
def test_predicts_from_a_file_and_from_standard_input(trained, folder, by_file):
    text = "snow and wind\nsalt the soup\n"
    (folder / "new.txt").write_text(text)
    words = ("-m", "amp_xla", "predict", "--run", "runs/classification/good")
    if by_file:
        result = run_python(*words, "--file", "new.txt", cwd=folder)
    else:
        result = run_python(*words, stdin=text, cwd=folder)
    assert result.code == 0, result.err
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [(row[0], row[2]) for row in rows] == [
        ("weather", "snow and wind"),
        ("kitchen", "salt the soup"),
    ]
    assert all(0.5 < float(row[1]) <= 1 for row in rows)


@pytest.mark.slow
def test_a_reader_that_ends_early_gets_no_traceback(trained, folder):
    (folder / "many.txt").write_text("".join(f"snow and wind {i}\n" for i in range(9999)))
    predict = f"{sys.executable} -m amp_xla predict runs/classification/good many.txt"
    done = subprocess.run(
        ["bash", "-c", f"{predict} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=str(folder), env=environment(), capture_output=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stdout.count(b"\n")) == (141, 1), done
    assert done.stdout.startswith(b"weather\t") and done.stderr.count(b"\n") == 1, done


@pytest.mark.slow
def test_the_same_seed_gives_the_same_losses(trained, folder):
    result = recipe(folder, "--epochs", "3", "--name", "again")
    assert result.code == 0, result.err

    def losses(name):
        path = folder / "runs" / "classification" / name / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    assert losses("again") == losses("good")


@pytest.mark.slow
def test_xla_runs_in_clusters_when_asked_for(folder):
    result = recipe(folder, "--epochs", "1", "--name", "xla", "--xla", "on")
    assert result.code == 0, result.err
    executed = json.loads((folder / "runs/classification/xla/executed.json").read_text())
    assert executed["clusters"] > 0
    # The nodes are counted although XLA hides them.
    assert (executed["half_nodes"] > 0) == (backend.half_dtype()[0] is not None)


@pytest.mark.slow
def test_xla_asked_for_and_not_there_is_an_error(folder):
    env = {"TF_XLA_FLAGS": "--tf_xla_min_cluster_size=1000000"}
    result = recipe(folder, "--epochs", "1", "--name", "no-xla", "--xla", "on", env=env)
    assert result.code == 2
    assert "xla=on is set" in result.err and "Traceback" not in result.err


@pytest.mark.skipif(backend.half_dtype()[0] is None, reason="this machine has no half precision")
def test_a_rewrite_that_silently_fails_stops_the_run(folder):
    # An operation in two lists makes TensorFlow log a failure and go on in float32.
    kind = "BLACKLIST" if backend.kind() == "tf1" else "DENYLIST"
    env = {f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{kind}_ADD": "MatMul"}
    result = recipe(folder, "--epochs", "1", "--name", "silent", env=env)
    assert result.code == 2
    assert "the graph rewrite did not run" in result.err and "Traceback" not in result.err


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_that_predicts(folder):
    words = ("--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "500", "--name", "stop")
    process = subprocess.Popen(
        [sys.executable, "-m", "recipes.classification", *words],
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=str(folder),
    )
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line.decode())
        if line.startswith(b"step 10/"):
            process.send_signal(signal.SIGINT)
            break
    began = time.monotonic()
    log.append(process.stderr.read().decode())
    assert process.wait(60) == 130, "".join(log)
    assert time.monotonic() - began < 30
    assert "stopped by SIGINT" in "".join(log)
    done = run_python(
        "-m", "amp_xla", "predict", "--run", "runs/classification/stop",
        stdin="rain\n", cwd=folder,
    )  # fmt: skip
    assert done.code == 0 and done.out.endswith("\train\n"), done.err


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--epoch", "3"), ["--epochs"]),
        (("--precision", "half"), ["fp32", "tf32", "amp"]),
        (("--dev", "missing.tsv"), ["missing.tsv"]),
        (("--bert", "nowhere"), ["nowhere", "vocab.txt"]),
        (("--loss-scale", "0"), ["loss_scale", "dynamic"]),
    ],
)
def test_a_mistake_is_named_in_a_line_not_in_a_traceback(folder, flags, words):
    result = recipe(folder, *flags)
    assert result.code == 2
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def test_help_lists_every_field_with_a_word_on_it():
    result = run_python("-m", "recipes.classification", "--help")
    assert result.code == 0
    for flag in ("--max-length", "--on-bad-line", "--precision", "--loss-scale", "--seed"):
        assert flag in result.out
    assert ROOT.joinpath("recipes/classification.py").read_text().count("\n") <= 250
