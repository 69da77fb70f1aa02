"""Exports are compared with their runs; the cards of folders have the scores."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.export import card
from amp_xla.export.model import comparable, compare
from tests.support import run_folders as folders

pytestmark = pytest.mark.once
OUTPUTS = np.array([[2.0, 0.0, -1.0], [-3.0, 300.0, -np.inf]])


@pytest.mark.parametrize("change, dtype, accepted", [
    (0.9e-4, "fp32", True), (1.2e-4, "fp32", False), (1.2e-4, "fp16", True), (2e-2, "fp16", False),
    (np.nan, "fp16", False),
])  # fmt: skip
def test_outputs_may_differ_by_the_tolerance(change, dtype, accepted):
    answers = OUTPUTS + [[0.0, change, 0.0], [0.0, 300.0 * abs(change), 0.0]]
    if accepted:
        assert compare(OUTPUTS, answers, dtype) == pytest.approx(change)
    else:
        with pytest.raises(AmpXlaError, match="nothing was written"):
            compare(OUTPUTS, answers, dtype)


def test_outputs_of_all_kinds_are_compared():
    chances = np.exp(OUTPUTS - OUTPUTS.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    np.testing.assert_allclose(comparable({"logits": OUTPUTS}), chances)
    np.testing.assert_array_equal(comparable({"probabilities": chances, "logits": 0}), chances)
    np.testing.assert_allclose(comparable({"scores": OUTPUTS}), 1 / (1 + np.exp(-OUTPUTS)))


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
