"""What recipes give to predict and evaluate."""

import numpy as np
import pytest

from amp_xla.commands import predict
from amp_xla.errors import AmpXlaError
from amp_xla.training.answers import Answers, checked, label_answers

pytestmark = pytest.mark.once
CHANCES = np.array([[0.75, 0.25], [0.625, 0.5001], [0.1, 0.2]])


@pytest.mark.parametrize(("returned", "lines", "message"), [
    *((other, "a", "allowed: Answers ") for other in (["a text"], CHANCES, None, (1, 2, 3))),
    *((Answers([([], {})] * 3), lines, "gave 3 answers to") for lines in ("ab", "abcd")),
])  # fmt: skip
def test_other_results_of_predict_are_one_clear_error(returned, lines, message):
    with pytest.raises(AmpXlaError, match=message):
        checked(returned, list(lines))


def test_labels_are_joined_by_the_separator_and_nan_is_an_error():
    rows = label_answers(["a"], ("x", "y"), np.array([[np.nan, 0.5]])).rows
    several = ([], {"labels": [], "probabilities": {"x": float("nan")}})  # of --multilabel
    nested = ([], {"spans": [{"at": 1}, ({"score": np.float32("nan")},)]})
    for answer in (rows[0], several, nested, ([], {"score": float("nan")})):
        with pytest.raises(AmpXlaError, match="NaN"):
            checked(Answers([answer]), ["a"])
    rows, blank = label_answers(["a", "b", "c"], ("tool", "food"), CHANCES, ",")
    assert blank == {"labels": None}
    cells, fields = zip(*rows)
    assert cells == (["tool", "0.7500", "a"], ["tool,food", "0.6250,0.5001", "b"], ["", "", "c"])
    assert [each["labels"] for each in fields] == [["tool"], ["tool", "food"], []]


def test_options_of_two_kinds_of_answers_exclude_each_other():
    with pytest.raises(AmpXlaError, match="--query excludes --beams"):
        predict.main(["--query", "a text", "--beams", "2"])
    for flags in (["--query", "a text"], ["--beams", "2"], ["--json"]):
        with pytest.raises(AmpXlaError, match="--vectors excludes --json, --query and"):
            predict.main(["--vectors", "out.npy", *flags])
