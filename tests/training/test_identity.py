"""Which settings and data may differ when a run is resumed."""

from __future__ import annotations

import pytest

from amp_xla.config import make
from amp_xla.training import identity
from recipes.classification import Config


def described(config):
    found = {part: {} for part in ("variables", "data", "assets", "settings", "versions")}
    return {
        **found,
        "config": identity.settings_of(config),
        "may change": identity.may_change(config),
    }


@pytest.mark.parametrize(
    "changes, forcible, longer",
    [
        ({}, [], []),
        ({"log_every": 7, "bert": "elsewhere", "train": "c.tsv", "dev": "d.tsv"}, [], []),
        ({"name": "b", "keep": 9, "on_nonfinite": "stop"}, [], []),
        ({"learning_rate": 0.5}, ["setting learning_rate: 0.0005 then, 0.5 now"], []),
        ({"seed": 5, "log_every": 1}, ["setting seed: 1 then, 5 now"], []),
        ({"epochs": 12}, [], ["epochs 8 then, 12 now"]),
        ({"epochs": 4}, ["setting epochs: 8 then, 4 now"], []),
    ],
)
def test_what_changes_a_step_is_named(changes, forcible, longer):
    then, now = described(Config()), described(make(Config, **changes))
    assert identity.differences(then, now) == ([], forcible, longer)


def test_data_are_compared_by_content():
    then, now = described(Config()), described(Config())
    then["data"], now["data"] = {"train": "one"}, {"train": "another"}
    assert identity.differences(then, now).forcible == ["data train: one then, another now"]
