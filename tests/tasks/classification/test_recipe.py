"""The classification recipe as users run it: small data made here."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.support.commands import FP32, PREDICT, RECIPE
from tests.support.killing import metrics, state
from tests.support.running import run_python

TINY = (
    "--layers 1 --hidden 64 --max-length 24 --shapes 2 --batch-size 16 --learning-rate 2e-3 "
    "--vocab-size 200 --log-every 5 --seed 3"
).split()
WORDS = {
    "weather": ["rain", "wind", "snow", "sun", "cloud", "storm", "frost"],
    "kitchen": ["soup", "bread", "pan", "salt", "oven", "knife", "stove"],
}


def write_corpus(path, samples, seed):
    rng = random.Random(seed)
    lines = []
    for _ in range(samples):
        label = rng.choice(sorted(WORDS))
        words = [rng.choice(WORDS[label] + ["the", "a", "with"]) for _ in range(rng.randint(3, 18))]
        lines.append(f"{' '.join(words)}\t{label}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


DATA = ("--train", "train.tsv", "--dev", "dev.tsv", *TINY)


@pytest.fixture(scope="module")
def command(command):
    write_corpus(command.folder / "train.tsv", 400, 1)
    write_corpus(command.folder / "dev.tsv", 80, 2)
    return command


@pytest.fixture(scope="module")
def trained(command):
    """A run in a process as users start it."""
    words = ("-m", RECIPE, *DATA, "--epochs", "3", "--name", "good")
    result = run_python(*words, cwd=command.folder)
    assert result.code == 0, result.err
    return command.folder / "runs" / "classification" / "good", result


def test_learns_and_leaves_a_complete_run_folder(trained):
    run, result = trained
    words = ("loading libraries", "reading train.tsv", "learning a vocabulary", "done", "report")
    begins = [result.err.find(word) for word in words]
    assert -1 not in begins and begins == sorted(begins), result.err
    assert "report: runs/classification/good/report.html\n" in result.err
    assert "best dev accuracy" in result.err
    assert float(result.err.split("best dev accuracy ")[1].split()[0]) >= 0.95
    assert json.loads((run / "config.json").read_text())["hidden"] == 64
    process = json.loads((run / "run.json").read_text())
    assert process["recipe"] == "classification" and process["tensorflow"]
    logged = metrics(run)
    steps = [line for line in logged if "loss" in line]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {"samples", "learning_rate", "loss_scale", "skipped_steps"} <= set(steps[0])
    assert [line["dev_accuracy"] for line in logged if "dev_accuracy" in line]
    assert list(run.glob("events.out.tfevents.*"))
    assert (run / "vocab.txt").read_text().startswith("[PAD]\n")
    assert checkpoint.best(run / "checkpoints") is not None
    assert '<span class="state done">' in (run / "report.html").read_text()
    half, why = backend.half_dtype()
    executed = json.loads((run / "executed.json").read_text())
    assert (executed["half_nodes"] > 0) == (half is not None)
    assert executed["half_dtype"] == (half or "") and why in result.err
    assert f"precision amp ({half or 'float32'}: " in result.err
    lines = result.err.splitlines()
    assert not [line for line in lines if "tensorflow/" in line or "Warning" in line]
    assert len(lines) < 60


def test_vectors_are_those_that_the_layer_of_labels_gets(trained, command):
    lines = ["rain and snow", "", "the soup", "rain and snow with bread"]
    (command.folder / "lines.txt").write_text("\n".join(lines))
    run = ("--run", trained[0], "--file", "lines.txt", "--checkpoint", "last")
    assert command.done(PREDICT, *run, "--vectors", "out.npy", code=FP32).out == ""
    vectors = np.load(str(command.folder / "out.npy"))
    assert (vectors.dtype, vectors.shape) == (np.float32, (3, 64))
    tensors = checkpoint.find(trained[0], "last").tensors()
    logits = vectors @ tensors["Logits/kernel"] + tensors["Logits/bias"]
    answers = [json.loads(x) for x in command(PREDICT, *run, "--json", code=FP32).out.splitlines()]
    chances = [list(x["probabilities"].values()) for x in answers if x["label"]]
    powers = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(powers, chances, atol=0.02)
    for path, problem in (("no/out.npy", "there is no folder no"), ("out", "there is no text")):
        assert problem in command(PREDICT, *run, "--vectors", path).error
        (command.folder / "lines.txt").write_text("\n \n")


TRICKS = (
    "--warm-start runs/classification/good --epochs 1 --learning-rate 1e-3 --fgm 1 --r-drop 4 "
    "--ema 0.9 --layer-decay 0.9 --freeze 0 --class-weights balanced --accumulate 2 "
    "--checkpoint-every 4 --keep 99"
).split()


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_all_tricks_that_is_resumed_ends_with_the_same_bits(trained, command):
    """And what it predicts with are the averages that it evaluated."""
    command.done(RECIPE, *DATA, *TRICKS, "--name", "whole")
    whole = command.folder / "runs" / "classification" / "whole"
    assert state(command.resumed(RECIPE, whole, 9, *DATA, *TRICKS)) == state(whole)
    words = ("--run", whole, "--file", "dev.tsv", "--checkpoint", "last", "--json")
    printed = json.loads(command("amp_xla.commands.evaluate", *words).out)
    plan = json.loads((whole / "status.json").read_text())["plan"]
    assert 0.0 < plan["padding_share"] < 1.0  # that of whole batches, also with --accumulate
    (result,) = whole.glob("*/dev.tsv/result.json")
    assert list(printed.values()) == [json.loads(result.read_text())]
    loss = json.loads(result.read_text())["metrics"]["loss"]["value"]
    logged = [line for line in command.metrics("classification", "whole") if "dev_loss" in line]
    assert loss == pytest.approx(logged[-1]["dev_loss"], rel=0.02)


@pytest.mark.once
def test_several_labels_per_text(command):
    """Those of the words in it: weather, kitchen, both or none.

    A variable sets the precision of the run, which is that of its predictions, too.
    """
    rng = random.Random(5)
    for name, count in (("several.tsv", 400), ("several-dev.tsv", 80)):
        lines = []
        for _ in range(count):
            labels = [label for label in sorted(WORDS) if rng.random() < 0.5]
            words = [rng.choice(WORDS[label]) for label in labels for _ in range(4)]
            words += rng.choices(["the", "a", "with"], k=5)
            lines.append(f"{' '.join(rng.sample(words, len(words)))}\t{'|'.join(labels)}\n")
        (command.folder / name).write_text("".join(lines))
    words = (RECIPE, "--train", "several.tsv", "--dev", "several-dev.tsv", *TINY)
    options = ("--multilabel", "|", "--epochs", "4", "--r-drop", "1", "--name", "several")
    result = command(*words, *options, code=FP32)
    assert result.code == 0 and "settings: precision fp32" in result.err, result.err
    best = max(line.get("dev_micro_f1", 0) for line in command.metrics("classification", "several"))
    assert best >= 0.95 and "best dev micro" in result.err
    samples = [line.split("\t") for line in [*lines, "\t"]]  # a blank one at the end
    texts = "".join(f"{text.strip()}\n" for text, _ in samples)
    (command.folder / "several.txt").write_text(texts)
    words = (PREDICT, "--run", "runs/classification/several", "--file", "several.txt")
    said = command(*words).out
    assert said == command(*words, code=FP32).out
    rows = [line.split("\t") for line in said.splitlines()]
    assert len(rows) == 81 and rows.pop() == [""]
    assert all(row[0].count("|") == row[1].count("|") and len(row) == 3 for row in rows)
    right = [row[0] == labels.strip() for row, (_, labels) in zip(rows, samples)]
    assert sum(right) > 70 and len({row[0] for row in rows}) == 4
    wrong = command(RECIPE, *DATA, "--multilabel", ",", "--class-weights", "balanced")
    assert "--multilabel excludes" in wrong.error
    words = (RECIPE, *DATA, "--attention", "fused", "--max-length", "64", "--hidden", "64")
    needed = "TensorFlow 2" if backend.kind() == "tf1" else "a GPU of compute capability 8.0"
    assert f"--attention fused needs {needed}" in command(*words).error


# An operation in two lists makes TensorFlow log a failure and go on in float32.
LIST = "BLACKLIST" if backend.kind() == "tf1" else "DENYLIST"


@pytest.mark.skipif(backend.half_dtype()[0] is None, reason="this machine has no half precision")
def test_amp_that_silently_does_nothing_stops_the_run(command):
    name = f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{LIST}_ADD"
    before = f"import os; os.environ[{name!r}] = 'MatMul'"
    result = command(RECIPE, *DATA, "--epochs", "1", "--name", "no-amp", code=before)
    assert result.code == 2 and "the graph rewrite did not run" in result.error
