"""Pretraining end to end: text, training, held-out loss, weights that others load."""

import json

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.tasks.pretraining.data import prepare
from amp_xla.training import checkpoint
from tests.support.killing import state

pytestmark = pytest.mark.slow
FILL = "amp_xla.commands.fill"
SMALL = ["--precision", "fp32", "--micro-batch", "4", "--global-batch", "8", "--heldout", "16",
         "--data", "data", "--log-every", "4", "--seed", "3"]  # fmt: skip
WHOLE = "runs/pretraining/whole"
SMALLER = """
from amp_xla.models import options
options.SIZES["tiny"] = (2, 64, 2)
"""


def prepared(folder):
    """Write a corpus whose grammar can be learned in a minute, and its sequences of 32 tokens."""
    rng = np.random.RandomState(0)
    pairs = [(f"north{i}", f"south{i}") for i in range(12)]
    lines = []
    for _ in range(1500):
        chosen = [pairs[i] for i in rng.randint(0, 12, 6)]
        lines.append(" ".join(f"{a} goes with {b} ." for a, b in chosen))
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepare.prepare(
        prepare.Config(
            out=str(folder / "data"), corpus=str(folder / "corpus.txt"), vocab_size=192,
            length=32, heldout=0.05, workers=1,
        )
    )  # fmt: skip


def train(command, name, *words):
    """Pretrain, and return what was printed."""
    words = (*SMALL, "--name", name, *words)
    result = command.done("recipes.pretraining", *words, code=SMALLER)
    return result.out + result.err


def table(command, module, *words):
    """Return what a command prints, as rows of columns."""
    return [line.split("\t") for line in command.done(module, *words).out.splitlines()]


@pytest.fixture(scope="module")
def command(command):
    """Commands in a folder with a prepared corpus."""
    prepared(command.folder)
    return command


@pytest.fixture(scope="module")
def trained(command):
    words = "--steps 60 --evaluate-every 30 --average 0.7 --learning-rate 5e-3"
    return train(command, "whole", *words.split())


def test_the_loss_falls_and_the_log_says_what_runs(command, trained):
    assert "global batch 8 = micro-batch 4 x accumulation 2 x ranks 1" in trained
    assert "6 of 32 positions predicted" in trained and "GFLOP" in trained
    lines = command.metrics("pretraining", "whole")
    losses = [line["dev_loss"] for line in lines if "dev_loss" in line]
    # Later the loss is level, and which evaluation is the better one depends on the processor.
    assert len(losses) == 2 and max(losses) < min(5.2, lines[0]["loss"])
    assert lines[-1]["dev_perplexity"] == pytest.approx(np.exp(losses[-1]), rel=1e-4)
    steps = [line for line in lines if "model_flops_per_second" in line]
    assert all(line["model_flops_per_second"] > 0 for line in steps)
    assert steps[-1]["applied_steps"] == 60


def test_masks_are_filled_in(command, trained):
    assert "try it: " in trained
    text = "north3 goes [MASK] south3 . north7 [MASK] with south7 ."
    rows = table(command, FILL, "--run", WHOLE, "--text", text, "--top", "3")
    # Trained for a few steps, it knows the three common words; which of them is first is chance.
    first = {token: filled for _, token, filled in rows[:3]}
    assert len(rows) == 6 and "with" in first
    assert first["with"] == "north3 goes with south3 . north7 [MASK] with south7 ."
    chances = [float(row[0]) for row in rows]
    assert chances[0] > chances[1] > chances[2] > 0 and chances[3] > chances[4] > chances[5] > 0
    # Beside a longer text, and through a file, the answer is the same.
    (command.folder / "masked.txt").write_text(f"north1 goes with south1 . {text}\n\n{text}\n")
    both = table(command, FILL, "--run", WHOLE, "--file", "masked.txt", "--top", "3")
    assert both[7:] == rows and both[6] == [""]


@pytest.mark.once
def test_what_cannot_be_filled_in_is_said(command, trained):
    for words, said in (
        (["--text", "north3 goes"], "has no [MASK] to fill in"),
        (["--text", " "], "the text is empty"),
        (["--text", "a", "--file", "b"], "give one of them"),
        (["--text", "[MASK]" + " south" * 600], "allowed: up to 512"),
    ):
        assert said in command(FILL, "--run", WHOLE, *words).error
    for line in ('{"text": "[MASK]"}', "[MASK] B-LOC"):
        (command.folder / "a").write_text(line)
        assert "warning: a looks like " in command.done(FILL, "--run", WHOLE, "--file", "a").err


def scores_of(run, batch):
    """Return loss and accuracy of a batch by bert4keras' own model with the weights of a run."""
    backend.K.clear_session()
    build = backend.bert4keras("models").build_transformer_model
    model = build(str(run / "bert_config.json"), str(run / "bert_model.ckpt"), with_mlm="linear")
    ids, labels = batch["token_ids"], batch["labels"]
    logits = model.predict([ids, np.zeros_like(ids)]).astype(np.float64)
    backend.K.clear_session()
    predicted = logits[np.arange(len(ids))[:, None], batch["positions"]]
    chances = predicted - np.log(np.exp(predicted).sum(-1, keepdims=True))
    losses = -np.take_along_axis(chances, labels[..., None].astype(np.int64), -1)[..., 0]
    share = batch["weights"] / batch["weights"].sum()
    return (losses * share).sum(), ((predicted.argmax(-1) == labels) * share).sum()


def test_bert4keras_loads_the_weights_and_predicts_the_same(command, trained):
    """Its own model, over the held-out sequences and masks: the loss and hits of the run's log.

    So the average of the weights, which differ from those trained, is evaluated and saved.
    """
    from amp_xla.data.text.tokenizer import Tokenizer
    from amp_xla.tasks.pretraining.data.masking import Masking
    from amp_xla.tasks.pretraining.data.prepared import Manifest, Sequences
    from amp_xla.tasks.pretraining.data.stream import Stream
    from recipes.pretraining import Config

    run = command.folder / WHOLE
    tokenizer = Tokenizer.load(str(run / "vocab.txt"), True)
    masking = Masking(tokenizer, Config.goal.mask_rate, Config.goal.mask, seed=0)
    held = Sequences(Manifest.load(str(command.folder / "data")), "heldout")
    (batch,) = Stream(held, masking, 16, 1, shuffle=False).epoch(0)
    names = [name for name, _ in backend.tf.train.list_variables(str(run / "bert_model.ckpt"))]
    expected = ["bert/embeddings/word_embeddings", "cls/predictions/output_bias",
                "bert/encoder/layer_1/attention/output/LayerNorm/gamma"]  # fmt: skip
    assert set(expected) <= set(names)
    assert all(name.startswith(("bert/", "cls/predictions/")) for name in names)
    table = backend.tf.train.load_variable(str(run / "bert_model.ckpt"), expected[0])
    trained_table = checkpoint.find(run, "last").tensors()["Embedding-Token/embeddings"]
    assert np.abs(table - trained_table).max() > 1e-4
    evaluations = [line for line in command.metrics("pretraining", "whole") if "dev_loss" in line]
    best = min(evaluations, key=lambda line: line["dev_loss"])
    loss, accuracy = scores_of(run, batch)
    assert loss == pytest.approx(best["dev_loss"], rel=1e-4)
    assert accuracy == pytest.approx(best["dev_accuracy"], abs=1e-6)
    config = json.loads((run / "bert_config.json").read_text())
    assert config["vocab_size"] == tokenizer.vocab_size == len(table)


@pytest.mark.once
def test_a_second_phase_resumed_at_its_border_ends_with_the_same_bits(command):
    words = "--steps 8 --phase2-length 64 --phase2-share 0.25 --log-every 1 --checkpoint-every 3"
    words = [*words.split(), "--keep", "99", "--dropout", "0.1"]
    output = train(command, "phases", *words)
    assert "6 updates = " in output and "6 of 32 positions predicted, then 2 updates" in output
    assert "of 64 positions predicted" in output
    lines = command.metrics("pretraining", "phases")
    (judged,) = (line for line in lines if "dev_loss" in line)
    assert np.isfinite(judged["dev_loss"]) and np.isfinite(judged["dev_loss_32"])
    assert [line["samples"] for line in lines if "loss" in line][-1] == 64  # as many a step
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[-1] < rates[6] < rates[4]  # one schedule: it falls on across the border

    whole = command.folder / "runs" / "pretraining" / "phases"
    again = command.resumed("recipes.pretraining", whole, 6, *SMALL, *words, code=SMALLER)
    assert state(again) == state(whole)


@pytest.mark.once
@pytest.mark.parametrize("objective", ["lm", pytest.param("unilm", marks=pytest.mark.long)])
def test_the_other_objectives_learn(command, objective):
    words = "--steps 12 --evaluate-every 12 --optimizer lamb --learning-rate 0.01"
    output = train(command, objective, "--objective", objective, *words.split())
    assert "31 of 32 positions predicted" in output and "try it: " not in output
    lines = command.metrics("pretraining", objective)
    losses = [line["dev_loss"] for line in lines if "dev_loss" in line]
    assert np.isfinite(losses[-1]) and losses[-1] < 5.0
