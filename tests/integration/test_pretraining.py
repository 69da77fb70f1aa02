"""Pretraining end to end: text, training, held-out loss, weights that others load."""

from __future__ import annotations

import json

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.training import checkpoint
from tests.integration.commands import Commands
from tests.integration.grammar import prepared
from tests.integration.killing import state

pytestmark = pytest.mark.slow
FILL, EVALUATE = "amp_xla.commands.fill", "amp_xla.commands.evaluate"
SMALL = ["--precision", "fp32", "--micro-batch", "4", "--global-batch", "8", "--heldout", "16",
         "--data", "data", "--log-every", "4", "--seed", "3"]  # fmt: skip
WHOLE = "runs/pretraining/whole"


class Place(Commands):
    """A folder with a prepared corpus, and commands started in it."""

    def train(self, name, *words, expected=0, **job):
        """Pretrain, and return what was printed."""
        result = self("recipes.pretraining", *SMALL, "--name", name, *words, **job)
        assert result.code == expected, result.out + result.err
        return result.out + result.err

    def rows(self, module, *words):
        """Return what a command prints, as rows of columns."""
        result = self(module, *words)
        assert result.code == 0, result.err
        return [line.split("\t") for line in result.out.splitlines()]

    def metrics_of(self, name):
        return self.metrics("pretraining", name)


@pytest.fixture(scope="module")
def place(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    prepared(folder)
    return Place(server, folder, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def trained(place):
    words = "--topic 0 --steps 60 --evaluate-every 30 --average 0.7"
    return place.train("whole", *words.split())


def test_the_loss_falls_and_the_log_says_what_runs(place, trained):
    assert "global batch 8 = micro-batch 4 x accumulation 2 x ranks 1" in trained
    assert "6 of 32 positions predicted" in trained and "GFLOP" in trained
    lines = place.metrics_of("whole")
    losses = [line["dev_loss"] for line in lines if "dev_loss" in line]
    # Later the loss is level, and which evaluation is the better one depends on the processor.
    assert len(losses) == 2 and max(losses) < min(5.2, lines[0]["loss"])
    assert lines[-1]["dev_perplexity"] == pytest.approx(np.exp(losses[-1]), rel=1e-4)
    steps = [line for line in lines if "model_flops_per_second" in line]
    assert all(line["model_flops_per_second"] > 0 for line in steps)
    assert steps[-1]["applied_steps"] == 60


def test_masks_are_filled_in(place, trained):
    assert "try it: " in trained
    text = "north3 goes [MASK] south3 . north7 [MASK] with south7 ."
    rows = place.rows(FILL, "--run", WHOLE, "--text", text, "--top", "3")
    # Trained for a few steps, it knows the three common words; which of them is first is chance.
    first = {token: filled for _, token, filled in rows[:3]}
    assert len(rows) == 6 and "with" in first
    assert first["with"] == "north3 goes with south3 . north7 [MASK] with south7 ."
    chances = [float(row[0]) for row in rows]
    assert chances[0] > chances[1] > chances[2] > 0 and chances[3] > chances[4] > chances[5] > 0
    # Beside a longer text, and through a file, the answer is the same.
    (place.folder / "masked.txt").write_text(f"north1 goes with south1 . {text}\n\n{text}\n")
    both = place.rows(FILL, "--run", WHOLE, "--file", "masked.txt", "--top", "3")
    assert both[7:] == rows and both[6] == [""]


@pytest.mark.once
def test_what_cannot_be_filled_in_or_evaluated_is_said(place, trained):
    for words, said in (
        (["--text", "north3 goes"], "has no [MASK] to fill in"),
        (["--text", " "], "the text is empty"),
        (["--text", "a", "--file", "b"], "give one of them"),
        (["--text", "[MASK]" + " south" * 600], "the model reads 512"),
    ):
        assert said in place(FILL, "--run", WHOLE, *words).error
    for words, said in (
        ("--run nowhere", "there is no folder nowhere"),
        ("--run data", "data: bert_config.json and a checkpoint"),
    ):
        assert said in place(EVALUATE, *words.split()).error


def logits_of(run, ids):
    """Return what bert4keras' own model gives with the weights of a run, float64."""
    backend.K.clear_session()
    build = backend.bert4keras("models").build_transformer_model
    model = build(str(run / "bert_config.json"), str(run / "bert_model.ckpt"), with_mlm="linear")
    logits = model.predict([ids, np.zeros_like(ids)]).astype(np.float64)
    backend.K.clear_session()
    return logits


def test_bert4keras_loads_the_weights_and_predicts_the_same(place, trained):
    """Its own model, over the held-out sequences and masks: the loss and hits of the run's log.

    So the average of the weights, which differ from those trained, is evaluated and saved.
    """
    from amp_xla.data.pretraining.masking import Masking
    from amp_xla.data.pretraining.prepared import Manifest, Sequences
    from amp_xla.data.pretraining.stream import Stream
    from amp_xla.data.text.tokenizer import Tokenizer
    from recipes.pretraining import Config

    run = place.folder / WHOLE
    tokenizer = Tokenizer.load(str(run / "vocab.txt"), True)
    masking = Masking.of(tokenizer, 32, Config.mask_rate, Config.mask, seed=0)
    held = Sequences(Manifest.load(str(place.folder / "data")), "heldout")
    stream = Stream(
        held, masking, 16, 1, seed=0, shuffle=False, objective="mlm", sep_id=tokenizer.sep_id
    )
    (batch,) = stream.epoch(0)
    logits = logits_of(run, batch["token_ids"])
    assert logits.shape == (16, 32, tokenizer.vocab_size)
    names = [name for name, _ in backend.tf.train.list_variables(str(run / "bert_model.ckpt"))]
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
    table = backend.tf.train.load_variable(str(run / "bert_model.ckpt"), expected[0])
    trained_table = checkpoint.find(run, "last").tensors()["Embedding-Token/embeddings"]
    assert np.abs(table - trained_table).max() > 1e-4
    evaluations = [line for line in place.metrics_of("whole") if "dev_loss" in line]
    best = min(evaluations, key=lambda line: line["dev_loss"])
    share = batch["weights"] / batch["weights"].sum()
    assert (losses * share).sum() == pytest.approx(best["dev_loss"], rel=1e-4)
    assert (hits * share).sum() == pytest.approx(best["dev_accuracy"], abs=1e-6)
    config = json.loads((run / "bert_config.json").read_text())
    assert (
        config["vocab_size"]
        == tokenizer.vocab_size
        == len((run / "vocab.txt").read_text().splitlines())
    )


def evaluate(place, *words):
    """Return the rows of the table that ``evaluate`` prints."""
    return [row[0].strip("| ").split(" | ") for row in place.rows(EVALUATE, *words)]


def test_evaluate_prints_what_bert4keras_own_model_gives(place, trained):
    from amp_xla.data.pretraining.cloze import ClozeBenchmark
    from amp_xla.data.text.tokenizer import Tokenizer

    run = place.folder / WHOLE
    texts = [f"north{i} goes with south{i} . north1 goes with south1 ." for i in range(12)]
    (place.folder / "held.txt").write_text("\n".join(texts) + "\n")
    given = ["--text-file", "held.txt", "--length", "32", "--pseudo", "2", "--mask-rate", "0.3"]
    rows = evaluate(place, "--run", f"{run},{WHOLE}", *given)
    assert rows[0] == ["model", "masked words", "loss", "accuracy", "pseudo-perplexity"]
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
        logits = logits_of(run, ids)
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


SMALLER = """
from amp_xla.models import options
options.SIZES["tiny"] = (2, 64, 2)
"""


@pytest.mark.once
def test_a_second_phase_and_stops_around_its_border_are_bitwise(place):
    words = "--steps 8 --phase2-length 64 --phase2-share 0.25 --log-every 1 --checkpoint-every 3"
    words = [*words.split(), *"--topic 0 --dropout 0.1".split()]
    output = place.train("phases", *words, code=SMALLER)
    assert "6 updates = " in output and "6 of 32 positions predicted, then 2 updates" in output
    assert "of 64 positions predicted" in output
    lines = place.metrics_of("phases")
    (judged,) = (line for line in lines if "dev_loss" in line)
    assert np.isfinite(judged["dev_loss"]) and np.isfinite(judged["dev_loss_32"])
    assert [line["samples"] for line in lines if "loss" in line][-1] == 64  # as many a step
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[-1] < rates[6] < rates[4]  # one schedule: it falls on across the border

    # Stopped between two micro-batches of an update, and on the border.
    words.append("--resume")
    for at in ([2, "inside"], [5, "after"]):
        fault = dict(faults={"step": at, "signal": "SIGTERM"}, log="faults.jsonl")
        place.train("cut", *words, code=SMALLER, expected=143, **fault)
    output = place.train("cut", *words, code=SMALLER)
    assert "resumed from step-00000006" in output
    runs = place.folder / "runs" / "pretraining"
    assert state(runs / "cut") == state(runs / "phases")


@pytest.mark.once
@pytest.mark.parametrize("objective", ["lm", "unilm"])
def test_the_other_objectives_learn(place, objective):
    words = "--steps 12 --evaluate-every 12 --optimizer lamb --learning-rate 0.01 --topic 0"
    output = place.train(objective, "--objective", objective, *words.split())
    assert "31 of 32 positions predicted" in output
    losses = [line["dev_loss"] for line in place.metrics_of(objective) if "dev_loss" in line]
    assert np.isfinite(losses[-1]) and losses[-1] < 5.0


@pytest.mark.once
def test_the_loss_in_its_parts(place):
    output = place.train("parts", *"--steps 6 --log-every 1".split(), code=SMALLER)
    assert "loss = mlm_loss + a growing weight x topic_loss" in output
    shown = [values for values in place.metrics_of("parts") if "mlm_loss" in values]
    assert len(shown) == 6
    for k, values in enumerate(shown):
        whole = values["mlm_loss"] + k / 6 * values["topic_loss"]
        assert values["loss"] == pytest.approx(whole, rel=1e-5)
