"""Texts longer than a row, in windows: what is learned, predicted, scored and resumed."""

import json
import random

import pytest

from tests.support.killing import state
from tests.tasks.tagging import test_recipe as tagging

TINY = (
    "--layers 1 --hidden 64 --learning-rate 2e-3 --vocab-size 300 --batch-size 16 --seed 3 "
    "--log-every 5 --checkpoint-every 20 --keep 99 --token-dropout 0 --max-length 24 --stride 10"
).split()


WORDS = [f"{a}{b}" for a in "bdfgklm" for b in "aeiou"]
VALUES = {"cold": 10.0, "mild": 30.0, "warm": 50.0, "hot": 90.0}


def late(count, seed, labels=("cold", "warm")):
    """Return texts of 40 to 60 words, and one of the last ten, which decides the label."""
    source, made = random.Random(seed), []
    for _ in range(count):
        text = source.choices(WORDS, k=source.randint(40, 60))
        right = source.choice(labels)
        text[-source.randint(1, 10)] = right
        made.append((" ".join(text), right))
    return made


def classes(count, seed):
    return "".join(f"{text}\t{right}\n" for text, right in late(count, seed))


def numbers(count, seed):
    source, made = random.Random(seed), late(count, seed, list(VALUES))
    rows = ((text, VALUES[right] + source.uniform(0, 9)) for text, right in made)
    return "".join(f"{text}\t{number:.2f}\n" for text, number in rows)


def passages(count, seed):
    """Return questions in SQuAD's form: which word follows ``is`` near the end?"""
    source, paragraphs = random.Random(seed), []
    for text, _ in late(count, seed, ["is"]):
        before, _, after = text.partition(" is")
        answer = source.choice(WORDS)
        start = len(before) + 4
        qas = [{"question": "what", "answers": [{"text": answer, "answer_start": start}]}]
        paragraphs.append({"context": f"{before} is {answer}{after}", "qas": qas})
    return json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})


def joined(count, seed):
    """Return texts of several sentences with entities."""
    sentences = iter(tagging.samples(6 * count, seed))
    made = []
    for _ in range(count):
        text, entities = "", []
        for part, found in (next(sentences) for _ in range(6)):
            entities += [
                each._replace(start=each.start + len(text), end=each.end + len(text))
                for each in found
            ]
            text += f"{part} "
        made.append((text, entities))
    return tagging.columns(made)


CASES = {  # recipe, samples, metric and its minimum, flags
    "classification": (
        "classification", classes, "accuracy", 0.95,
        "--epochs 3 --accumulate 2 --batch-size 8 --learning-rate 4e-3",
    ),
    "packed": ("classification", classes, "accuracy", 0.95, "--epochs 6 --packed"),
    "regression": ("classification", numbers, "spearman", 0.8, "--epochs 8 --regression"),
    "tagging": ("tagging", joined, "f1", 0.9, "--epochs 1"),
    "reading": ("reading", passages, "f1", 0.9, "--epochs 8 --max-answer 4"),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.once] * (c != "classification")) for c in CASES]
)
def test_it_learns_what_stands_behind_the_first_row(case, command):
    recipe, write, metric, least, words = CASES[case]
    module, end = f"recipes.{recipe}", "json" if recipe == "reading" else "tsv"
    for name, count, seed in (("train", 300, 1), ("dev", 60, 2)):
        (command.folder / f"{name}.{end}").write_text(write(count, seed), encoding="utf-8")
    data = [*TINY, "--train", f"train.{end}", "--dev", f"dev.{end}", *words.split()]
    done = command.done(module, *data, "--name", case)
    assert "texts in windows, at most" in done.err, done.err
    logged = [line for line in command.metrics(recipe, case) if f"dev_{metric}" in line]
    best = max(logged, key=lambda line: line[f"dev_{metric}"])
    assert best[f"dev_{metric}"] >= least
    run = command.folder / "runs" / recipe / case
    _, result = command.evaluated(run, f"dev.{end}")
    assert result["metrics"][metric]["value"] == pytest.approx(best[f"dev_{metric}"], rel=1e-3)
    step = logged[-1]["step"] * 2 // 3
    assert state(command.resumed(module, run, step, *data)) == state(run)
