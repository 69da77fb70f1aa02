"""Labels have the same ids in every file; unknown labels and swapped columns are errors."""

import shlex

import numpy as np
import pytest

from amp_xla.data.text.labels import Labels
from amp_xla.errors import DataError

pytestmark = pytest.mark.once


def test_numbers_are_sorted_by_value_then_text_by_code_point(tmp_path):
    labels = Labels.fit(["10", "b", "2", "a", "-1", "0.5", "nan", "2", "书\n"])
    assert labels.names == ("-1", "0.5", "2", "10", "a", "b", "nan", "书\n")
    (tmp_path / "labels.json").write_bytes(labels.encoded())
    assert Labels.load(str(tmp_path / "labels.json")) == labels
    ids = labels.ids(["10", "a", "-1"])
    assert ids.dtype == np.int32 and ids.tolist() == [3, 4, 0]


def test_unseen_labels_one_class_and_swapped_columns_are_errors():
    labels = Labels.fit(["good", "bad"])
    with pytest.raises(DataError) as error:
        labels.ids(["good", "so-so", "so-so", "awful"])
    message = str(error.value)
    assert "'so-so' (2 times)" in message and "'awful' (1" in message
    assert "'bad', 'good'" in message
    with pytest.raises(DataError, match="3 samples with only this label: 'a'"):
        Labels.fit(["a"] * 3)
    with pytest.raises(DataError, match="none"):
        Labels.fit([])
    with pytest.raises(DataError, match="swapped"):
        Labels.fit([f"a whole sentence {i}" for i in range(200)])


def test_a_hint_if_the_cause_is_a_flag():
    labels = Labels.fit(["good", "bad"])
    with pytest.raises(DataError, match="; did --train-fraction 0.1 leave them out. Give a larger"):
        labels.ids(["so-so"], 0.1)
    for mark, names in (
        (",", ["0", "1", "17", "0,1,17"]), ("|", ["a|b", "a", "b"]),
        (";", ["a; b", "a;c", "b", "c"]),
    ):  # fmt: skip
        hint = f"may be several labels: --multilabel {shlex.quote(mark)}"
        assert hint in Labels.fit(names).warnings(names)
        with pytest.raises(DataError) as error:
            Labels.fit([*names[1:], "z"]).ids(names)
        assert hint in str(error.value) and "add such samples" not in str(error.value)
    assert "'-' is a class here" in Labels.fit(["-", "neutral"]).warnings(["-", "neutral"])
    for names in (["yes, of course", "no"], ["a", "b"], ["hotel, bar", "inn, pub"], ["1,5", "2,5"]):
        assert "--multilabel" not in Labels.fit(names).warnings(names)
