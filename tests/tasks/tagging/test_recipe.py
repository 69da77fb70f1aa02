"""The tagging recipe as users run it: small data made here."""

from __future__ import annotations

import json
import random

import pytest
from safetensors.numpy import load_file

from amp_xla.data.text.entities import Entity
from amp_xla.models.weights import google
from tests.support.commands import CLI

RECIPE = "recipes.tagging"
TINY = (
    "--layers 1 --hidden 64 --max-length 16 --shapes 2 --batch-size 16 --learning-rate 3e-3 "
    "--vocab-size 200 --log-every 5 --seed 3 --token-dropout 0"
).split()
PEOPLE, CITIES = "Ann Bob Eve Tom Kim Lee".split(), "Rome Oslo Bonn Lima Bern Cairo".split()
KINDS = {"person": PEOPLE, "city": CITIES}
FORMS = [
    "{person} lives in {city}", "from {city} came {person}", "the university of {city} called",
    "in {city} the sun shines", "{person} and {person} met", "nobody came",
]  # fmt: skip


def samples(count, seed, nested=False):
    source, made = random.Random(seed), []
    for _ in range(count):
        text, entities, rest = "", [], source.choice(FORMS)
        while rest:
            before, brace, rest = rest.partition("{")
            text += before
            if brace:
                kind, _, rest = rest.partition("}")
                name = source.choice(KINDS[kind])
                name += source.choice(["", f" {name}son"])
                entities.append(Entity(len(text), len(text) + len(name), kind))
                text += name
        if nested and "university" in text:
            entities.append(Entity(text.index("univ"), text.index(" called"), "school"))
        made.append((text, sorted(entities)))
    return made


def json_lines(made):
    return "".join(json.dumps({"text": t, "entities": e}) + "\n" for t, e in made)


def columns(made):
    lines = []
    for text, entities in made:
        at = 0
        for word in text.split():
            tag = "O"
            for start, end, label in entities:
                if start <= at < end:
                    tag = ("B-" if at == start else "I-") + label
            lines.append(f"{word}\t{tag}\n")
            at += len(word) + 1
        lines.append("\n")
    return "".join(lines)


DATA = (*TINY, "--train", "train.bio", "--dev", "dev.jsonl")
NESTED = (*TINY, "--train", "nested.jsonl", "--dev", "nested-dev.jsonl")


@pytest.fixture(scope="module")
def command(command):
    folder = command.folder
    (folder / "train.bio").write_text(columns(samples(400, 1)))
    (folder / "dev.jsonl").write_text(json_lines(samples(80, 2)))
    (folder / "nested.jsonl").write_text(json_lines(samples(400, 1, nested=True)))
    (folder / "nested-dev.jsonl").write_text(json_lines(samples(80, 2, nested=True)))
    return command


@pytest.fixture(scope="module")
def trained(command):
    done = command(RECIPE, *DATA, "--epochs", "3", "--name", "good")
    assert done.code == 0 and "best dev f1" in done.err, done.err
    return command.folder / "runs" / "tagging" / "good"


def test_it_learns_and_finds_the_entities_of_new_text(trained, command):
    assert max(line.get("dev_f1", 0) for line in command.metrics("tagging", "good")) >= 0.97
    (command.folder / "new.txt").write_text("from Oslo Osloson came Eve\n\nnobody came\n")
    done = command(CLI, "predict", str(trained), "new.txt")
    assert done.out == "5:17 city Oslo Osloson\t23:26 person Eve\n\n\n", done.err
    entities = [[5, 17, "city"], [23, 26, "person"]]
    answer = {"text": "from Oslo Osloson came Eve", "entities": entities}
    assert command.answers(trained, "new.txt")[0] == answer


@pytest.mark.once
def test_a_folder_for_transformers_names_the_tags_and_has_the_code_of_the_crf(trained, command):
    """``test_export.py`` in tests/integration compares the answers of a SavedModel."""
    command.done(CLI, "export", str(trained), "--format", "hf")
    tags = ["O", "B-city", "I-city", "B-person", "I-person"]
    hf = trained / "export-hf"
    config = json.loads((hf / "config.json").read_text())
    assert [config["id2label"][str(i)] for i in range(len(tags))] == tags
    transitions = load_file(str(hf / "model.safetensors"))["transitions"]
    row = dict(zip(tags, transitions[tags.index("B-city")]))
    assert row["I-city"] > row["I-person"]  # row = first tag
    assert config["model_type"] == "bert_tagger"  # not BERT, which would leave out transitions
    assert config["auto_map"]["AutoModelForTokenClassification"] == "tagger.Tagger"
    code = (hf / "tagger.py").read_text()
    compile(code, "tagger.py", "exec")
    assert "import BertConfig, BertForTokenClassification" in code
    assert "trust_remote_code=True" in (hf / "README.md").read_text()
    assert google.pretrained(str(hf)).config["model_type"] == "bert"  # --bert reads it


@pytest.mark.once
def test_evaluate_scores_each_label(trained, command):
    best = max(line.get("dev_f1", 0) for line in command.metrics("tagging", "good"))
    said, result = command.evaluated(trained, "dev.jsonl")
    assert "entities" in said
    assert result["metrics"]["f1"]["value"] == pytest.approx(best, abs=0.02)
    assert [row["label"] for row in result["per_label"]] == ["city", "person"]
    gold = [e for _, entities in samples(80, 2) for e in entities]
    assert sum(row["support"] for row in result["per_label"]) == len(gold)
    report = (trained / "report.html").read_text()
    assert "Evaluation on dev.jsonl" in report and "is not of the expected form" not in report


@pytest.mark.once
@pytest.mark.parametrize(
    "head", ["global_pointer", pytest.param("efficient_global_pointer", marks=pytest.mark.long)]
)
def test_a_head_of_spans_learns_nested_entities(command, head):
    done = command.done(RECIPE, *NESTED, "--epochs", "5", "--name", head, "--head", head)
    assert max(line.get("dev_f1", 0) for line in command.metrics("tagging", head)) >= 0.95
    (command.folder / "one.txt").write_text("the university of Rome called\n")
    done = command(CLI, "predict", f"runs/tagging/{head}", "one.txt")
    assert done.out == "4:22 school university of Rome\t18:22 city Rome\n", done.err
    done = command(RECIPE, *NESTED)  # a flat head
    assert "nested.jsonl:" in done.error and "--head global_pointer" in done.error
