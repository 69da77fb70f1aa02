"""What recipes give to predict and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amp_xla.commands import predict
from amp_xla.errors import AmpXlaError
from amp_xla.training.answers import LabelAnswers, answers_of
from amp_xla.training.sample_scores import Samples

pytestmark = pytest.mark.once
CHANCES = np.array([[0.75, 0.25], [0.625, 0.5001], [0.1, 0.2]])


def test_a_pair_is_labels_and_their_probabilities() -> None:
    answers = answers_of((("tool", "food"), CHANCES[:1]))
    assert answers.blank() == {"label": None}
    fields = {"label": "tool", "probability": 0.75, "probabilities": {"tool": 0.75, "food": 0.25}}
    assert answers.rows(["a pan"]) == [(["tool", "0.7500", "a pan"], fields)]


def test_several_labels_are_joined_by_the_separator() -> None:
    answers = LabelAnswers(("tool", "food"), CHANCES, ",")
    assert answers.blank() == {"labels": None} and answers_of(answers) is answers
    cells, fields = zip(*answers.rows(["a", "b", "c"]))
    assert cells == (["tool", "0.7500", "a"], ["tool,food", "0.6250,0.5001", "b"], ["", "", "c"])
    assert [each["labels"] for each in fields] == [["tool"], ["tool", "food"], []]


@pytest.mark.parametrize("returned", [["a text"], CHANCES, None, (1, 2, 3)])
def test_other_results_of_predict_are_one_clear_error(returned: Any) -> None:
    with pytest.raises(AmpXlaError, match="allowed: Answers .* or the pair of labels"):
        answers_of(returned)


def test_an_unknown_label_is_named_before_anything_is_predicted() -> None:
    samples = Samples(Path("run"), "step-1", "a.tsv", ["a"], ["tol"])
    with pytest.raises(AmpXlaError, match="a.tsv has the label 'tol'.* of run; .*: tool, food"):
        samples.check(samples.wanted, ("tool", "food"))


def test_options_of_two_kinds_of_answers_exclude_each_other() -> None:
    with pytest.raises(AmpXlaError, match="--query excludes --beams"):
        predict.main(["--query", "a text", "--beams", "2"])
