"""A number per text: ``classification --regression``, and labels that may be numbers or classes."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest

from amp_xla import backend
from amp_xla.data.batches.buckets import Batches
from amp_xla.data.labelled import BatchOptions, Preparation
from amp_xla.data.text.options import VocabularyOptions
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.errors import DataError, SettingsError
from amp_xla.models import losses
from amp_xla.tasks.classification.data import MultiLabelTextFiles, read
from tests.support.commands import CLI, RECIPE, served
from tests.tasks.classification.test_recipe import TINY
from tests.tasks.similarity.test_recipe import write

VALUES = {"bad": -3.0, "poor": -1.5, "fine": 1.0, "good": 2.5, "great": 4.0, "the": 0.0, "a": 0.0}
DATA = (*TINY, "--train", "train.tsv", "--dev", "dev.tsv", "--regression")
HOW = Preparation(VocabularyOptions(), BatchOptions(), None, 0.0, 1)
LONG = ("--epochs", "6", "--pooling", "pooler")


def samples(count, seed, digits=2):
    """Return texts whose number is a million, 50 and ten times the mean value of their words."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        words = [draw.choice(list(VALUES)) for _ in range(draw.randint(4, 12))]
        number = round(1_000_050 + 10 * sum(map(VALUES.get, words)) / len(words), digits)
        made.append((" ".join(words), number))
    return made


@pytest.fixture(scope="module")
def command(command):
    write(command.folder / "train.tsv", samples(600, 1))
    write(command.folder / "dev.tsv", samples(100, 2))
    return command


@pytest.fixture(scope="module")
def trained(command):
    said = command.done(RECIPE, *DATA, *LONG, "--name", "numbers").err
    assert "600 training and 100 dev texts, numbers from" in said and "best dev spearman" in said
    return command.folder / "runs" / "classification" / "numbers"


def ranks(values):
    return [sum(int(x < v) + int(x <= v) for x in values) for v in values]


def test_it_learns_and_predicts_evaluates_and_draws_numbers(trained, command):
    logged = [x for x in command.metrics("classification", "numbers") if "dev_spearman" in x]
    best = max(logged, key=lambda line: line["dev_spearman"])
    assert best["dev_spearman"] > 0.9 and best["dev_pearson"] > 0.9
    found = np.array([each["score"] for each in command.answers(trained, "dev.tsv")])
    labels = np.array([number for _, number in samples(100, 2)])
    expected = {
        "spearman": np.corrcoef(ranks(labels), ranks(found))[0, 1],
        "pearson": np.corrcoef(labels, found)[0, 1],
        "mean_absolute_error": np.abs(labels - found).mean(),
    }
    assert expected["mean_absolute_error"] < 4 and 40 < found.mean() - 1e6 < 65
    _, result = command.evaluated(trained, "dev.tsv")
    for name, value in expected.items():
        assert result["metrics"][name]["value"] == pytest.approx(value, rel=1e-6)
        assert best[f"dev_{name}"] == pytest.approx(value, rel=1e-3)
    assert len(result["scatter"]) == 100
    assert 'aria-label="Predictions by label, 100 samples"' in (trained / "report.html").read_text()
    done = command(CLI, "predict", str(trained), "dev.tsv")
    assert float(done.out.split("\t")[0]) == pytest.approx(found[0], abs=1e-4)


@pytest.mark.once
@pytest.mark.slow
def test_exports_answer_with_the_same_numbers(trained, command):
    """The head in Hugging Face's folder has the scale, so its class needs no other number."""
    command.done(CLI, "export", str(trained), "--format", "hf", "--to", "hf")
    config = json.loads((command.folder / "hf" / "config.json").read_text())
    assert config["problem_type"] == "regression" and config["id2label"] == {"0": "score"}
    assert config["architectures"] == ["BertForSequenceClassification"]
    command.done(CLI, "export", str(trained), "--to", "saved")
    lines = [text for text, _ in samples(5, 9)]
    (command.folder / "five.txt").write_text("\n".join(lines))
    encoded = Tokenizer.of_folder(str(command.folder / "saved")).encode(lines)
    (batch,) = Batches(encoded, None, [24], len(lines), shuffle=False).epoch(0)
    found = served(command.folder / "saved", batch)["score"]
    expected = [each["score"] - 1e6 for each in command.answers(trained, "five.txt")]
    np.testing.assert_allclose(found - 1e6, expected, rtol=2e-2)  # predict: in half precision


@pytest.mark.once
@pytest.mark.parametrize("digits, flags, said", [
    (2, {"classes": True}, "the model does not predict values between them"),
    (-1, {}, "different whole numbers, read as classes; --regression predicts a number"),
    (-1, {"regression": True}, "read as numbers; without --regression they are classes"),
])  # fmt: skip
def test_numbers_are_asked_about_or_said(tmp_path, digits, flags, said):
    write(tmp_path / "train.tsv", samples(80, 3, digits) * 2)
    files = MultiLabelTextFiles(*[str(tmp_path / "train.tsv")] * 2, **flags)
    assert said in read(files, HOW).description
    if flags == {"classes": True}:
        with pytest.raises(DataError, match="training data: the labels .* --classes to predict"):
            read(dataclasses.replace(files, classes=False), HOW)


@pytest.mark.once
@pytest.mark.parametrize("labels", [
    "1,5|2,5", "0,2|2,4|4,0", "1.5|1,5|2", "1 000,5|20", "1.000,5|2", "-0,25|1", "３，５|1",
    "50%|25 %", "−2|2", "1\u00a0000|2",
    "1-3|4-6 as classes", "1.2.3|1.2.4 as classes", "10:30|7:15 as classes", "1/2|2 as classes",
    "①|② as classes", "m²|² as classes",
])  # fmt: skip
def test_numbers_in_other_forms_are_no_classes(tmp_path, labels):
    labels, _, classes = labels.partition(" as ")
    write(tmp_path / "a.tsv", [(f"text {i}", x) for i, x in enumerate(9 * labels.split("|"))])
    files = MultiLabelTextFiles(*[str(tmp_path / "a.tsv")] * 2, classes=not classes)
    assert " labels; vocabulary" in read(files, HOW).description
    for number in () if classes else (True, False):
        with pytest.raises(DataError, match="a point before decimals"):
            read(dataclasses.replace(files, classes=False, regression=number), HOW)


@pytest.mark.once
def test_flags_that_exclude_each_other_and_the_loss():
    for others in ({"multilabel": ","}, {"classes": True}):
        with pytest.raises(SettingsError, match="--regression excludes --multi"):
            MultiLabelTextFiles(regression=True, **others)
    source = np.random.RandomState(1)
    logits, labels = source.randn(2, 4, 1).astype(np.float32)
    found = backend.session().run(losses.squared(labels[:, 0], logits))
    np.testing.assert_allclose(found, (logits - labels)[:, 0] ** 2, rtol=1e-5)
