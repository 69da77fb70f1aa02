"""The reading recipe as users run it: made-up passages in CMRC 2018's and SQuAD 2.0's form."""

from __future__ import annotations

import json
import operator
import random
import re

import pytest
from safetensors.numpy import load_file

from amp_xla.data.batches.buckets import Batches
from amp_xla.data.text.tokenizer import Tokenizer
from amp_xla.tasks.reading import data, scores
from tests.support.commands import CLI, served

RECIPE = "recipes.reading"
TINY = (
    "--layers 2 --hidden 64 --max-length 96 --shapes 1 --batch-size 16 --learning-rate 1e-3 "
    "--vocab-size 200 --log-every 5 --seed 3 --max-answer 8 --dropout 0 --attention-dropout 0"
).split()
DATA = (*TINY, "--train", "train.json", "--dev", "dev.json")
PEOPLE, CITIES = "张伟 王芳 李娜 刘洋 陈杰 赵磊".split(), "北京 上海 广州 深圳 哈尔滨".split()
COMPANIES = "蓝天航空 东方书店 长江银行 新星软件 BERT公司".split()
FACTS = {  # name -> words before the fact in a passage, question about it
    "born": ("生于", "哪一年出生？"), "city": ("老家是", "的老家在哪里？"),
    "home": ("如今住在", "现在住在哪里？"), "company": ("任职于", "在哪里任职？"),
}  # fmt: skip


def questions(count, seed, empty=0.0):
    """Return passages in CMRC 2018's squad-style form, two questions on each."""
    draw, passages = random.Random(seed), []
    for number in range(count):
        born, company = f"{draw.randint(1950, 1999)}年", draw.choice(COMPANIES)
        facts = dict(zip(FACTS, (born, *draw.sample(CITIES, 2), company)))
        missing = draw.choice(list(FACTS)) if draw.random() < empty else ""
        person, places = draw.choice(PEOPLE), {}
        passage = person
        for name in draw.sample(list(FACTS), len(FACTS)):
            if name != missing:
                passage += FACTS[name][0]
                places[name] = {"text": facts[name], "answer_start": len(passage)}
                passage += f"{facts[name]}，"
        qas = [
            {"question": person + FACTS[name][1], "id": f"{number}_{name}",
             "answers": [places[name]] if name in places else []}
            for name in draw.sample(list(FACTS), 2)
        ]  # fmt: skip
        passages.append({"title": "", "paragraphs": [{"context": passage, "qas": qas}]})
    return {"version": "v1.0", "data": passages}


def flat(content):
    return [
        (qa["question"], paragraph["context"], [answer["text"] for answer in qa["answers"]])
        for article in content["data"] for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]  # fmt: skip


def labels_of(content):
    return [json.dumps([(text, -1) for text in texts]) for _, _, texts in flat(content)]


@pytest.fixture(scope="module")
def command(command):
    for name, count, seed, empty in (
        ("train", 500, 1, 0.0), ("dev", 75, 2, 0.0), ("train2", 500, 3, 1.0), ("dev2", 75, 4, 1.0),
    ):  # fmt: skip
        content = json.dumps(questions(count, seed, empty), ensure_ascii=False)
        (command.folder / f"{name}.json").write_text(content, encoding="utf-8")
    return command


@pytest.fixture(scope="module")
def trained(command):
    said = command.done(RECIPE, *DATA, "--epochs", "10", "--name", "good").err
    assert "1,000 training and 150 dev questions, 0 and 0 of them without an answer" in said, said
    assert "warning" not in said and re.search('^sample: .*, label = "[^"[]+"$', said, re.M)
    return command.folder / "runs" / "reading" / "good"


def test_it_learns_and_answers_new_questions(trained, command):
    assert max(line.get("dev_f1", 0) for line in command.metrics("reading", "good")) >= 0.95
    new = flat(questions(10, 9))
    lines = "".join(f"{question}\t{passage}\n\n" for question, passage, _ in new)
    (command.folder / "new.txt").write_text(lines, encoding="utf-8")
    done = command(CLI, "predict", str(trained), "new.txt")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[-1] for row in rows[::2]] == [question for question, _, _ in new]
    assert sum([row[0]] == right for row, (_, _, right) in zip(rows[::2], new)) >= 17
    answers = command.answers(trained, "new.txt")
    for row, answer, (_, passage, _) in zip(rows[::2], answers[::2], new):
        assert passage[answer["start"] : answer["end"]] == answer["answer"] == row[0]
        assert answer["n_best"][0]["score"] == answer["score"] > answer["n_best"][1]["score"]
        assert len(answer["n_best"]) == 5
    assert rows[1] == [""] and answers[1]["answer"] is None
    (command.folder / "bad.txt").write_text("a question alone\n")
    said = command(CLI, "predict", str(trained), "bad.txt").error
    assert "bad.txt, line 1: needed: two texts with a tab" in said


@pytest.mark.once
def test_evaluate_scores_as_predict_answers(trained, command):
    found = [each["answer"] for each in command.answers(trained, "dev.json")]
    exact, f1 = scores.compared(found, labels_of(questions(75, 2))).mean(0)
    _, result = command.evaluated(trained, "dev.json")
    assert result["metrics"]["f1"]["value"] == pytest.approx(f1)
    assert result["metrics"]["exact_match"]["value"] == pytest.approx(exact)
    best = max(line.get("dev_f1", 0) for line in command.metrics("reading", "good"))
    assert f1 == pytest.approx(best)
    assert "Evaluation on dev.json" in (trained / "report.html").read_text()


@pytest.mark.once
def test_no_answer_is_one_too(command):
    """The threshold is chosen on dev, and saved with the run."""
    words = (*TINY, "--train", "train2.json", "--dev", "dev2.json", "--epochs", "10")
    command.done(RECIPE, *words, "--name", "second")
    best = max(command.metrics("reading", "second"), key=lambda line: line.get("dev_f1", 0))
    assert best["dev_f1"] >= 0.9
    run = command.folder / "runs" / "reading" / "second"
    answers = command.answers(run, "dev2.json")
    labels = labels_of(questions(75, 4, 1.0))
    f1 = scores.compared([answer["answer"] for answer in answers], labels)[:, 1].mean()
    assert f1 == pytest.approx(best["dev_f1"])
    for answer in answers:
        assert (answer["answer"] == "") == (answer["null_odds"] >= best["dev_threshold"])


@pytest.mark.once
@pytest.mark.slow
def test_exports_answer_as_predict(trained, command):
    """A SavedModel by its outputs; Hugging Face's folder has the head of its own class."""
    expected = [each["answer"] for each in command.answers(trained, "dev.json")]
    lines = [line[:2] for line in flat(questions(75, 2))]
    command.done(CLI, "export", str(trained), "--to", "saved")
    tokenizer = Tokenizer.of_folder(str(command.folder / "saved"))
    aligned = data.encode(*zip(*lines), tokenizer, 96)
    (batch,) = Batches(aligned.encoded, None, [96], len(lines), shuffle=False).epoch(0)
    values = served(command.folder / "saved", batch)["scores"]
    first, last, *_ = scores.decode(values, batch, 8)
    found = [aligned.words(i, *span) for i, span in enumerate(zip(first[:, 0], last[:, 0]))]
    same = sum(map(operator.eq, found, expected))  # predict computes in half precision
    assert same >= 0.97 * len(expected)
    done = command.done(CLI, "export", str(trained), "--format", "hf", "--to", "hf")
    assert 'pipeline("question-answering", "hf", max_answer_len=8, max_seq_len=96)' in done.out
    config = json.loads((command.folder / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    weights = load_file(str(command.folder / "hf" / "model.safetensors"))
    assert [weights[f"qa_outputs.{x}"].shape for x in ("weight", "bias")] == [(2, 64), (2,)]
