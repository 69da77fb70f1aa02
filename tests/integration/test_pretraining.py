"""Pretraining end to end: text, training, held-out loss, weights that others load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.integration.grammar import prepared

ROOT = Path(__file__).parents[2]
SMALL = ["--precision", "fp32", "--micro-batch", "4", "--global-batch", "8", "--heldout", "16",
         "--log-every", "4", "--seed", "3", "--topic", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    prepared(folder)
    return folder


def recipe(place, name, *args, code="", **environment):
    """Runs ``recipes.<name>`` in its own process; returns what it wrote to stderr and stdout."""
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}\n"
    script += f"from recipes import {name} as r\nfrom amp_xla.process.exits import exit_code\n"
    script += f"sys.exit(exit_code(r.main, {[str(a) for a in args]!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=str(place), timeout=240, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout.decode()


def metrics(place, run):
    lines = (place / "runs" / "pretraining" / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(place):
    code, output = recipe(
        place, "pretraining", "--data", "data", "--steps", "60", "--evaluate-every", "30",
        "--name", "whole", *SMALL,
    )  # fmt: skip
    assert code == 0, output
    return output


def test_the_loss_is_shown_in_its_parts(place):
    code, out = recipe(
        place, "pretraining", *SMALL[:-2], "--data", "data", "--steps", "6",
        "--log-every", "1", "--name", "parts",
    )  # fmt: skip
    assert code == 0, out
    assert "loss = mlm_loss + a growing weight x topic_loss" in out
    shown = [values for values in metrics(place, "parts") if "mlm_loss" in values]
    assert len(shown) == 6
    for k, values in enumerate(shown):
        whole = values["mlm_loss"] + k / 6 * values["topic_loss"]
        assert values["loss"] == pytest.approx(whole, rel=1e-5)


def test_the_loss_falls_and_the_log_says_what_runs(place, trained):
    assert "global batch 8 = micro-batch 4 x accumulation 2 x ranks 1" in trained
    assert "6 of 32 positions predicted" in trained and "GFLOP" in trained
    lines = metrics(place, "whole")
    losses = [line["dev_loss"] for line in lines if "dev_loss" in line]
    assert len(losses) == 2 and losses[1] < losses[0] < 5.2
    assert lines[-1]["dev_perplexity"] == pytest.approx(np.exp(losses[-1]), rel=1e-4)
    steps = [line for line in lines if "model_flops_utilisation" in line]
    assert all(0 < line["model_flops_utilisation"] < 1.5 for line in steps)
    assert steps[-1]["applied_steps"] == 60


BUILT = """
import sys
from recipes import pretraining
from amp_xla.config import parse
config = parse(pretraining.Config, sys.argv[1:])
config.precision_options.resolve()
from amp_xla.graph import flops
flops.ceiling = None  # only training measures the machine, not inspect or tune
job = pretraining.build(config)
inner = job.step.optimizer.inner
print(type(inner).__name__, inner._beta2, inner._epsilon, inner.weight_decay)
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("preset", "built"),
    [("cramming", "AdamW 0.98 1e-12 0.01"), ("lamb", "LAMB 0.999 1e-06 0.01"),
     ("roberta", "AveragedAdamW 0.98 1e-06 0.01")],
)  # fmt: skip
def test_what_a_preset_says_reaches_the_optimizer(place, preset, built):
    words = ["--preset", preset, "--data", "data", "--steps", "4", "--global-batch", "16"]
    words += ["--precision", "fp32", *(["--average", "0.9"] if preset == "roberta" else [])]
    done = subprocess.run(
        [sys.executable, "-c", BUILT, *words], cwd=str(place), timeout=240, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.decode().strip() == built, done.stderr.decode()


def fill(place, *args):
    """What ``fill`` prints, as rows of columns, or its error."""
    command = [sys.executable, "-m", "amp_xla", "fill", "--run", "runs/pretraining/whole", *args]
    done = subprocess.run(
        command, cwd=str(place), timeout=240, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if done.returncode:
        return done.stderr.decode().splitlines()[-1]
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def test_masks_are_filled_in(place, trained):
    assert "try it: " in trained
    text = "north3 goes [MASK] south3 . north7 [MASK] with south7 ."
    rows = fill(place, "--text", text, "--top", "3")
    # Trained for a few steps, it knows the three common words; which of them is first is chance.
    first = {token: filled for _, token, filled in rows[:3]}
    assert len(rows) == 6 and "with" in first
    assert first["with"] == "north3 goes with south3 . north7 [MASK] with south7 ."
    chances = [float(row[0]) for row in rows]
    assert chances[0] > chances[1] > chances[2] > 0 and chances[3] > chances[4] > chances[5] > 0
    # Beside a longer text, and through a file, the answer is the same.
    (place / "masked.txt").write_text(f"north1 goes with south1 . {text}\n\n{text}\n")
    both = fill(place, "--file", "masked.txt", "--top", "3")
    assert both[7:] == rows and both[6] == [""]


def test_what_cannot_be_filled_in_is_said(place, trained):
    assert fill(place, "--text", "north3 goes").endswith("has no [MASK] to fill in")
    assert "the text is empty" in fill(place, "--text", " ")
    assert "give one of them" in fill(place, "--text", "a", "--file", "b")
    said = fill(place, "--text", "[MASK]" + " south" * 600)
    assert "text 1 has " in said and "the model reads 512" in said


COMPARE = """
import json, sys
import numpy as np
from amp_xla import backend, setup
from amp_xla.backend import K, tf
run = sys.argv[1]
build = backend.bert4keras("models").build_transformer_model
model = build(run + "/bert_config.json", run + "/bert_model.ckpt", with_mlm="linear")
names = [n for n, _ in tf.train.list_variables(run + "/bert_model.ckpt")]
ids = np.load("ids.npy")
logits = model.predict([ids, np.zeros_like(ids)])
np.save("logits.npy", logits)
json.dump(names, open("names.json", "w"))
"""


def test_bert4keras_loads_the_weights_and_predicts_the_same(place, trained):
    """Its own model, over the held-out sequences and masks: the loss and hits of the run's log."""
    from amp_xla.data.pretraining.masking import Masking
    from amp_xla.data.pretraining.prepared import Manifest, Sequences
    from amp_xla.data.pretraining.stream import Stream
    from amp_xla.data.text.tokenizer import Tokenizer
    from recipes.pretraining import Config

    run = place / "runs" / "pretraining" / "whole"
    tokenizer = Tokenizer.load(str(run / "vocab.txt"), True)
    masking = Masking.of(tokenizer, 32, Config.mask_rate, Config.mask, seed=0)
    held = Sequences(Manifest.load(str(place / "data")), "heldout")
    stream = Stream(
        held, masking, 16, 1, seed=0, shuffle=False, objective="mlm", sep_id=tokenizer.sep_id
    )
    (batch,) = stream.epoch(0)
    np.save(place / "ids.npy", batch["token_ids"])
    subprocess.run(
        [sys.executable, "-c", COMPARE, str(run)], cwd=str(place), timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AMP_XLA_PRECISION": "fp32"},
    )  # fmt: skip
    logits = np.load(place / "logits.npy").astype(np.float64)
    assert logits.shape == (16, 32, tokenizer.vocab_size)
    names = json.loads((place / "names.json").read_text())
    expected = ["bert/embeddings/word_embeddings", "cls/predictions/output_bias",
                "bert/encoder/layer_2/attention/output/LayerNorm/gamma"]  # fmt: skip
    assert set(expected) <= set(names) and all(
        name.startswith(("bert/", "cls/predictions/")) for name in names
    )
    rows = np.arange(16)[:, None]
    predicted = logits[rows, batch["positions"]]
    chances = predicted - np.log(np.exp(predicted).sum(-1, keepdims=True))
    losses = -np.take_along_axis(chances, batch["labels"][..., None].astype(np.int64), -1)[..., 0]
    hits = predicted.argmax(-1) == batch["labels"]
    last = metrics(place, "whole")[-1]
    share = batch["weights"] / batch["weights"].sum()
    assert (losses * share).sum() == pytest.approx(last["dev_loss"], rel=1e-4)
    assert (hits * share).sum() == pytest.approx(last["dev_accuracy"], abs=1e-6)
    config = json.loads((run / "bert_config.json").read_text())
    assert (
        config["vocab_size"]
        == tokenizer.vocab_size
        == len((run / "vocab.txt").read_text().splitlines())
    )


def evaluate(place, *args):
    """The rows of the table that ``evaluate`` prints, or its error."""
    done = subprocess.run(
        [sys.executable, "-m", "amp_xla", "evaluate", *args], cwd=str(place), timeout=400,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if done.returncode:
        return done.stderr.decode().splitlines()[-1]
    return [line.strip("| ").split(" | ") for line in done.stdout.decode().splitlines()]


def test_evaluate_prints_what_bert4keras_own_model_gives(place, trained):
    from amp_xla.data.pretraining.cloze import ClozeBenchmark
    from amp_xla.data.text.tokenizer import Tokenizer

    run = place / "runs" / "pretraining" / "whole"
    texts = [f"north{i} goes with south{i} . north1 goes with south1 ." for i in range(12)]
    (place / "held.txt").write_text("\n".join(texts) + "\n")
    given = ["--text-file", "held.txt", "--length", "32", "--pseudo", "2", "--mask-rate", "0.3"]
    rows = evaluate(place, "--run", f"{run},runs/pretraining/whole", *given)
    assert rows[0] == ["model", "hidden words", "loss", "accuracy", "pseudo-perplexity"]
    assert rows[2][1:] == rows[3][1:] and rows[2][1] == str(12 * 3)
    tokenizer = Tokenizer.load(str(run / "vocab.txt"), True)
    benchmark = ClozeBenchmark.of(texts, [tokenizer], 32)
    for questions, shown in (
        (benchmark.together(tokenizer, 0.3, 1), [float(rows[2][2]), float(rows[2][3])]),
        (benchmark.one_by_one(tokenizer, 2), [np.log(float(rows[2][4]))]),
    ):
        asked = list(questions)
        ids = np.zeros((len(asked), 32), np.int32)
        for row, question in enumerate(asked):
            ids[row, : len(question.token_ids)] = question.token_ids
        np.save(place / "ids.npy", ids)
        subprocess.run(
            [sys.executable, "-c", COMPARE, str(run)], cwd=str(place), timeout=120, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "AMP_XLA_PRECISION": "fp32"},
        )  # fmt: skip
        logits = np.load(place / "logits.npy").astype(np.float64)
        chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses, hits = [], []
        for row, question in enumerate(asked):
            for word in sorted(set(question.words)):
                at = [i for i, number in enumerate(question.words) if number == word]
                where = [(row, question.positions[i], question.labels[i]) for i in at]
                losses.append(-sum(chances[place] for place in where))
                hits.append(all(logits[r, p].argmax() == label for r, p, label in where))
        expected = [np.mean(losses), np.mean(hits)]
        assert shown == pytest.approx(expected[: len(shown)], abs=2e-3 / len(shown))


def test_what_cannot_be_evaluated_is_said(place, trained):
    for words, said in (
        ("--run nowhere", "there is no folder nowhere"),
        ("--run data", "data: bert_config.json and a checkpoint"),
        ("--run runs/pretraining/whole -- --epochs 1", "give --finetune-seeds 3"),
    ):
        assert said in evaluate(place, *words.split())


@pytest.mark.long
def test_evaluate_fine_tunes_with_each_seed(place, trained):
    for name in ("train", "dev"):
        rows = [f"north{i % 12} goes with south{(i + i % 2) % 12} .\t{i % 2}" for i in range(48)]
        (place / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    rows = evaluate(
        place, "--run", "runs/pretraining/whole", "--texts", "8", "--pseudo", "0",
        "--finetune-seeds", "2", "--", "--train", "train.tsv", "--dev", "dev.tsv", "--epochs", "1",
        "--shapes", "1", "--max-length", "16", "--precision", "fp32",
    )  # fmt: skip
    assert rows[0][-1] == "fine-tuned, dev accuracy of 2"
    mean, spread = map(float, rows[2][-1].split(" ± "))
    found = []
    for run in sorted((place / "runs" / "classification").glob("evaluate-*")):
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        found.append(max(line["dev_accuracy"] for line in lines if "dev_accuracy" in line))
    assert len(found) == 2 and mean == pytest.approx(np.mean(found), abs=1e-4)
    assert spread == pytest.approx(np.std(found, ddof=1), abs=1e-4)


def test_classification_starts_from_the_weights(place, trained):
    for name in ("train", "dev"):
        rows = [f"north{i % 12} goes with south{(i + i % 2) % 12} .\t{i % 2}" for i in range(48)]
        (place / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    code, output = recipe(
        place, "classification", "--train", "train.tsv", "--dev", "dev.tsv", "--bert",
        "runs/pretraining/whole", "--epochs", "1", "--shapes", "1", "--max-length", "16",
        "--precision", "fp32", "--name", "tuned",
    )  # fmt: skip
    assert code == 0, output
    assert "done: best dev accuracy" in output


# Each checkpoint is on disk before the next step: a slow disk would not have the border's yet.
KILL = """
import os, signal
from amp_xla.training import step
from amp_xla.training.checkpoint_writer import CheckpointWriter
save = CheckpointWriter.save
def waiting(self, *args, **kwargs):
    save(self, *args, **kwargs)
    self.wait()
CheckpointWriter.save = waiting
call = step.TrainStep.__call__
def stopping(self, feed, number):
    if number == {number}:
        os.kill(os.getpid(), signal.{signal})
    return call(self, feed, number)
step.TrainStep.__call__ = stopping
"""


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_bitwise(place, trained):
    """Stopped in the middle of a window of micro-batches, in a pass other than the first."""
    common = ["--data", "data", "--steps", "60", "--evaluate-every", "30", *SMALL]
    code, output = recipe(
        place, "pretraining", *common, "--name", "cut",
        code="import amp_xla.setup\n" + KILL.format(number=61, signal="SIGTERM"),
    )  # fmt: skip
    assert code == 143 and "--resume" in output, output
    code, output = recipe(place, "pretraining", *common, "--name", "cut", "--resume")
    assert code == 0 and "resumed from" in output, output
    one, two = (
        (place / "runs" / "pretraining" / run / "bert_model.ckpt.data-00000-of-00001").read_bytes()
        for run in ("whole", "cut")
    )
    assert one == two


SMALLER = """
import amp_xla.setup
from amp_xla.models import language_model
language_model.SIZES["tiny"] = (2, 64, 2)
"""


@pytest.mark.slow
def test_a_second_phase_has_longer_sequences_and_its_border_is_no_place_to_get_lost(place):
    phases = ["--steps", "8", "--phase2-length", "64", "--phase2-share", "0.25"]
    often = ["--log-every", "1", "--checkpoint-every", "3"]
    common = ["--data", "data", "--dropout", "0.1", *phases, *SMALL, *often]
    code, output = recipe(place, "pretraining", *common, "--name", "phases", code=SMALLER)
    assert code == 0, output
    assert "6 updates = " in output and "6 of 32 positions predicted, then 2 updates" in output
    assert "of 64 positions predicted" in output
    lines = metrics(place, "phases")
    (judged,) = (line for line in lines if "dev_loss" in line)
    assert np.isfinite(judged["dev_loss"]) and np.isfinite(judged["dev_loss_32"])
    assert [line["samples"] for line in lines if "loss" in line][-1] == 64  # as many a step
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[-1] < rates[6] < rates[4]  # one schedule: it falls on across the border

    # One stops on the border; the other is killed behind it, and begins again on it.
    stops = (("stopped", 11, "SIGTERM", 143), ("killed", 14, "SIGKILL", -9))
    for name, number, sent, status in stops:
        code, output = recipe(
            place, "pretraining", *common, "--name", name,
            code=SMALLER + KILL.format(number=number, signal=sent),
        )  # fmt: skip
        assert code == status, output
        code, output = recipe(
            place, "pretraining", *common, "--name", name, "--resume", code=SMALLER
        )
        assert code == 0 and "resumed from step-00000006" in output, output
        one, two = (
            (place / "runs/pretraining" / run / "bert_model.ckpt.data-00000-of-00001").read_bytes()
            for run in ("phases", name)
        )
        assert one == two, name


@pytest.mark.once
@pytest.mark.parametrize("objective", ["lm", "unilm"])
@pytest.mark.slow
def test_the_other_objectives_learn(place, objective):
    code, output = recipe(
        place, "pretraining", "--data", "data", "--steps", "12", "--evaluate-every", "12",
        "--objective", objective, "--optimizer", "lamb", "--learning-rate", "0.01",
        "--name", objective, *SMALL,
    )  # fmt: skip
    assert code == 0, output
    assert "31 of 32 positions predicted" in output
    losses = [line["dev_loss"] for line in metrics(place, objective) if "dev_loss" in line]
    assert np.isfinite(losses[-1]) and losses[-1] < 5.0


@pytest.mark.slow
def test_an_average_of_the_weights_is_what_is_evaluated_and_saved(place):
    code, output = recipe(
        place, "pretraining", "--data", "data", "--steps", "12", "--evaluate-every", "6",
        "--average", "0.7", "--name", "averaged", *SMALL,
        code="""
import amp_xla.setup
import numpy as np
from amp_xla.backend import K
from amp_xla.models.language_model import LanguageModel
from amp_xla.training.evaluation import HeldOut
seen = {}
def remember(cls, method, name):
    original = getattr(cls, method)
    def inside(self, *args):
        lm = self if cls is LanguageModel else self._lm
        seen[name] = np.concatenate([w.ravel() for w in K.batch_get_value(lm.weights)])
        return original(self, *args)
    setattr(cls, method, inside)
build = HeldOut.__init__
def keeping(self, lm, *args):
    self._lm = lm
    build(self, lm, *args)
HeldOut.__init__ = keeping
remember(HeldOut, "__call__", "evaluated")
remember(LanguageModel, "write_checkpoint", "saved")
import amp_xla.training.loop as loop
train = loop.Loop.train
def checking(self, watch):
    state = train(self, watch)
    now = np.concatenate([w.ravel() for w in K.batch_get_value(self.engine.job.step.variables)])
    assert np.array_equal(seen["evaluated"], seen["saved"])
    assert np.abs(seen["evaluated"] - now).max() > 1e-4
    print("averages were in place")
    return state
loop.Loop.train = checking
""",
    )  # fmt: skip
    assert code == 0 and "averages were in place" in output, output
    losses = [line["dev_loss"] for line in metrics(place, "averaged") if "dev_loss" in line]
    assert losses[1] < losses[0]
