"""A choice is found again for the same question only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from amp_xla.errors import AmpXlaError
from amp_xla.process.arguments import make
from amp_xla.process.fields import changed
from amp_xla.speed import choice
from amp_xla.speed.machine import Machine
from recipes import classification

HERE = Machine("CPU", False, "", "2.17.1", "0.11.5", False, "bfloat16", "3.12.1", "", 2, 24.0)


def test_a_choice_survives_other_choices_and_a_damaged_file(tmp_path):
    path = tmp_path / "runs" / "tuned.json"
    one = choice.Choice("amp", "off", 10.0)
    choice.remember("a", one, path)
    choice.remember("b", choice.Choice("fp32", "on", 3.0), path)
    assert choice.recall("a", path) == one
    assert choice.recall("c", path) is None
    for damage in ("{", "null", "[1]", '{"a": 3}', '{"a": {"xla": "on"}}'):
        path.write_text(damage)
        assert choice.recall("a", path) is None
        choice.remember("b", one, path)
        assert choice.recall("b", path) == one


def test_a_folder_that_cannot_be_written_is_known_before_measuring():
    with pytest.raises(AmpXlaError, match=r"/sys/kernel/runs/tuned.json: .*; start tune in"):
        choice.check_writable(Path("/sys/kernel/runs/tuned.json"))  # not even for root


def test_the_key_covers_model_shapes_and_machine_and_nothing_else(tmp_path):
    config = classification.Config()
    key = choice.key("classification", config, HERE)
    for name, value in (("epochs", 9), ("seed", 5), ("learning_rate", 1.0), ("precision", "amp")):
        same = changed(config, **{name: value})
        assert choice.key("classification", same, HERE) == key, name
    for name, value in (("layers", 9), ("batch_size", 5), ("max_length", 100), ("packed", True)):
        other = changed(config, **{name: value})
        assert choice.key("classification", other, HERE) != key, name
    for name, value in (("driver", "525"), ("tensorflow", "2.18"), ("device", "H100")):
        there = dataclasses.replace(HERE, **{name: value})
        assert choice.key("classification", config, there) != key, name


def test_the_key_sees_a_data_file_change_its_size(tmp_path):
    data = tmp_path / "train.tsv"
    data.write_text("a\tb\n")
    config = make(classification.Config, train=str(data))
    before = choice.key("classification", config, HERE)
    data.write_text("a\tb\nc\td\n")
    assert choice.key("classification", config, HERE) != before


def test_every_rung_that_is_missing_has_a_reason():
    ladder = HERE.ladder()
    assert ("amp", "no_lazy") in ladder and ladder[0] == ("fp32", "off")
    assert not any("tf32" in rung for rung in ladder) and ("amp", "lite") in ladder
    assert set(HERE.absent) == {"tf32"}
    stock = dataclasses.replace(HERE, tensorflow="1.15.5", half_dtype="")
    assert set(stock.absent) == {"tf32", "amp", "lite"}
    assert not any("lite" in rung or "amp" in rung for rung in stock.ladder())
