"""Model cards of exported folders say what the run folder has, and no more."""

import json
from types import SimpleNamespace

import pytest

from amp_xla.export import card
from tests.support import run_folders as folders

pytestmark = pytest.mark.once
USE = ['load: from transformers import pipeline; pipeline("text-classification", "FOLDER")']


def written(run, step, labels=()):
    """Return the entries of a card's first lines, and its text."""
    path = run / "checkpoints" / f"step-{step:08d}"
    saved = SimpleNamespace(run=run, path=path, step=step, recipe="classification")
    card.write(run, saved, "text-classification", labels, USE)
    start, head, text = (run / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    entries = dict(line.split(": ", 1) for line in head.splitlines())
    assert start == ""
    return {key: json.loads(value) for key, value in entries.items()}, text


def test_a_card_has_the_scores_of_its_checkpoint_with_intervals(tmp_path):
    run = folders.good(tmp_path / "run", epochs=5, train="/home/me/secret/a.tsv")
    folders.scored(run, "x|y")
    head, text = written(run, 200, ("tool", "x|y"))
    (index,) = head["model-index"]
    result = json.loads((run / "evaluation" / "test.tsv" / "result.json").read_text())
    assert index["name"] == "run" and head["library_name"] == "transformers"
    values = {
        (x["dataset"]["name"], x["metrics"][0]["type"]): x["metrics"][0]["value"]
        for x in index["results"]
    }
    assert values["dev set (built-in text)", "accuracy"] == 0.9
    for name, score in result["metrics"].items():
        assert values["test.tsv", name] == score["value"]
        if "low" in score:
            assert f"{score['value']:.4f} | {score['low']:.4f} to {score['high']:.4f} |" in text
    assert "| epochs | 5 |" in text and "- train: a.tsv" in text and "secret" not in text
    assert "tool, x\\|y" in text and "amp-xla train 'a b'" in text and USE[0] in text
    head, text = written(run, 100)  # another checkpoint: not the scores of the exported one
    assert "test.tsv" not in text and "| accuracy | 0.7000 |" in text


def test_a_card_of_a_foreign_run_has_no_markup_of_its_own(tmp_path):
    run = folders.good(tmp_path / "---\nname: <b>", dev="a\n---\n<script>|")
    (run / "run.json").write_text('{"command": "a \\n```\\n# b", "tensorflow": ["<i>"]}')
    head, text = written(run, 200, ("a\nb", "```"))
    assert "<" not in text.replace("&lt;", "") and text.count("\n```\n") == 4
    assert list(head) == ["library_name", "tags", "pipeline_tag", "model-index"]
    for path in run.glob("*.json*"):
        path.write_text("[" if path.suffix == ".json" else "{}\n")
    head, text = written(run, 200)
    assert "model-index" not in head and "no evaluation" in text
