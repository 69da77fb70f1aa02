"""The seq2seq recipe as users run it: small texts and titles made here."""

import json
import random

import pytest

from amp_xla.tasks.seq2seq.scores import rouge_l, words
from tests.support.commands import CLI, PREDICT
from tests.support.killing import metrics, state
from tests.tasks.similarity.test_recipe import write

RECIPE = "recipes.seq2seq"
DATA = (
    "--train train.tsv --dev dev.jsonl --layers 1 --hidden 64 --max-length 24 --max-target 6 "
    "--shapes 2 --learning-rate 4e-3 --vocab-size 100 --log-every 5 --epochs 8 --batch-size 16 "
    "--checkpoint-every 9 --keep 99"
).split()
NAMES, TOWNS = "ann bob eve tom joe kim".split(), "rome oslo bonn lima".split()
EVENTS = {"founded": "founds", "left": "leaves", "visited": "visits"}


def titles(count, seed):
    """A text, and its title: who does what where."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        name, town, past = draw.choice(NAMES), draw.choice(TOWNS), draw.choice(sorted(EVENTS))
        text = draw.choice([f"yesterday {name} {past} {town}", f"{town} : {past} by {name} today"])
        made.append((text, f"{name} {EVENTS[past]} {town}"))
    return made


@pytest.fixture(scope="module")
def command(command):
    folder = command.folder
    write(folder / "train.tsv", titles(400, 1))
    rows = [{"summary": title, "text": text, "label": None} for text, title in titles(40, 2)]
    (folder / "dev.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write(
        folder / "new.txt", [("yesterday eve left lima",), ("",), ("oslo : founded by bob today",)]
    )
    return command


@pytest.fixture(scope="module")
def run(command):
    command.done(RECIPE, *DATA, "--name", "whole")
    return command.folder / "runs" / "seq2seq" / "whole"


def test_it_learns_and_answers_each_line(command, run):
    dev = [line for line in metrics(run) if "dev_rouge_l" in line][-1]
    copied = [rouge_l(words(text)[:3], words(title)) for text, title in titles(40, 2)]
    assert dev["dev_rouge_l"] > sum(copied) / len(copied) + 0.2
    model = json.loads((run / "bert_config.json").read_text())
    assert {"layer_norm_eps", "initializer_range"} <= model.keys()  # of the language model
    for flags in ((), ("--beams", "3")):
        done = command(PREDICT, "--run", run, "--file", "new.txt", *flags)
        assert done.out.splitlines() == ["eve leaves lima", "", "bob founds oslo"], done.err


@pytest.mark.once
def test_it_answers_labelled_lines_and_draws_by_a_seed(command, run):
    (command.folder / "labelled.tsv").write_text("yesterday eve left lima\teve leaves lima\n")
    done = command(PREDICT, "--run", run, "--file", "labelled.tsv")
    assert done.out == "eve leaves lima\n"
    assert "columns: text = 0 (no header); 1 unused" in done.err
    draw = (PREDICT, "--run", run, "--file", "new.txt", "--json", "--top-p", "1")
    drawn = [command(*draw, "--temperature", "9", "--seed", seed).out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert json.loads(drawn[0].splitlines()[0])["text"] == "yesterday eve left lima"


@pytest.mark.once
def test_it_is_scored_and_resumed_to_the_same_bits(command, run):
    done = command.done(CLI, "evaluate", "--run", run, "--file", "dev.jsonl", "--json")
    scores = json.loads(done.out)[str(run)]["metrics"]
    assert sorted(scores) == ["bleu", "rouge_1", "rouge_2", "rouge_l"]
    best = max(line.get("dev_rouge_l", 0) for line in metrics(run))
    assert scores["rouge_l"]["value"] == pytest.approx(best, abs=1e-6)
    assert state(command.resumed(RECIPE, run, 119, *DATA)) == state(run)
