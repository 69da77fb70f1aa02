"""The relations recipe as users run it: made-up sentences in DuIE's format."""

import json
import random

import pytest

from tests.support.commands import CLI
from tests.support.killing import state

RECIPE = "recipes.relations"
TINY = (
    "--layers 1 --hidden 64 --max-length 32 --shapes 1 --batch-size 16 --learning-rate 4e-3 "
    "--vocab-size 200 --log-every 5 --seed 3 --token-dropout 0"
).split()
DATA = (*TINY, "--train", "train.json", "--dev", "dev.json")
LONG = ("--epochs", "8", "--checkpoint-every", "10", "--keep", "99")
PEOPLE, CITIES = "张伟 王芳 李娜 刘洋 陈杰".split(), "北京 上海 广州 深圳".split()
COMPANIES = "蓝天航空 东方书店 长江银行 新星软件".split()
FORMS = [
    ("{p}出生于{c}，如今在{f}工作。", [("{p}", "出生地", "{c}"), ("{p}", "单位", "{f}")]),
    ("{p}昨天在{c}创办了{f}。", [("{f}", "创始人", "{p}"), ("{f}", "总部", "{c}")]),
    ("{c}{f}自己创办了自己。", [("{c}{f}", "创始人", "{c}{f}"), ("{f}", "总部", "{c}")]),
    ("昨天{p}在{c}。", []),
]


def samples(count, seed):
    """Return sentences with overlapping, nested and self-referring triples, or with none."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        form, triples = draw.choice(FORMS)
        names = {"p": draw.choice(PEOPLE), "c": draw.choice(CITIES), "f": draw.choice(COMPANIES)}
        spo = [
            {"subject": s.format(**names), "predicate": p, "object": {"@value": o.format(**names)}}
            for s, p, o in triples
        ]
        made.append({"text": form.format(**names), "spo_list": spo})
    return made


def triples_of(record):
    values = ((spo["subject"], spo["predicate"], spo["object"]) for spo in record["spo_list"])
    return {(s, p, o["@value"] if isinstance(o, dict) else o) for s, p, o in values}


def write(folder):
    lines = (json.dumps(each, ensure_ascii=False) + "\n" for each in samples(200, 1))
    (folder / "train.json").write_text("".join(lines), encoding="utf-8")
    (folder / "dev.json").write_text(json.dumps(samples(60, 2), indent=1))


@pytest.fixture(scope="module")
def command(command):
    write(command.folder)
    return command


@pytest.fixture(scope="module")
def trained(command):
    said = command.done(RECIPE, *DATA, *LONG, "--name", "good").err
    assert "best dev f1" in said, said
    return command.folder / "runs" / "relations" / "good"


def test_it_learns_and_finds_the_triples_of_new_text(trained, command):
    assert max(line.get("dev_f1", 0) for line in command.metrics("relations", "good")) >= 0.95
    (command.folder / "new.txt").write_text("刘洋昨天在广州创办了长江银行。\n\n昨天王芳在北京。\n")
    done = command(CLI, "predict", str(trained), "new.txt")
    assert done.out == "(长江银行, 创始人, 刘洋)\t(长江银行, 总部, 广州)\n\n\n", done.err
    first, blank, none = command.answers(trained, "new.txt")
    spo = {"subject": "长江银行", "predicate": "创始人", "object": "刘洋"}
    assert first["spo_list"][0] == spo and blank["spo_list"] is None and none["spo_list"] == []
    assert "training triples cannot be found" not in done.err


@pytest.mark.once
def test_evaluate_counts_as_an_independent_count_and_a_resume_is_exact(trained, command):
    found = list(map(triples_of, command.answers(trained, "dev.json")))
    gold = [triples_of(record) for record in samples(60, 2)]
    right = sum(len(f & g) for f, g in zip(found, gold))
    f1 = 2 * right / (sum(map(len, found)) + sum(map(len, gold)))
    said, result = command.evaluated(trained, "dev.json")
    assert "triples" in said
    assert result["metrics"]["f1"]["value"] == pytest.approx(f1, abs=1e-9)
    assert result["metrics"]["partial_f1"]["value"] >= f1
    support = {row["label"]: row["support"] for row in result["per_label"]}
    every = [p for triples in gold for _, p, _ in triples]
    assert support == {name: every.count(name) for name in sorted(set(every))}
    assert "Evaluation on dev.json" in (trained / "report.html").read_text()
    assert state(command.resumed(RECIPE, trained, 57, *DATA, *LONG)) == state(trained)


@pytest.mark.once
def test_before_it_has_learned_it_says_what_is_missing(command):
    short = ("--epochs", "1", "--learning-rate", "1e-6", "--name", "short")
    said = command.done(RECIPE, *DATA, *short).err
    assert "F1 is 0: no score of a subject or object is above 0" in said
