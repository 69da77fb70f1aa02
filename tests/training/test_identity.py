"""Which settings a resumed run may have others of: what the recipe's fields say, old or new."""

from __future__ import annotations

import importlib

import pytest

from amp_xla.config import make
from amp_xla.training import identity
from tests.recipes.test_settings import OLDER, RUN


def described(settings, config=None):
    parts = ("variables", "data", "assets", "settings", "versions")
    found = {part: {} for part in parts}
    found["config"] = settings
    if config is not None:  # checkpoints of today say it, older ones do not
        found["may change"] = identity.may_change(config)
        found["by default"] = identity.by_default(config)
    return found


@pytest.mark.parametrize(
    "changes, differences",
    [
        ({}, []),
        ({"log_every": 7, "bert": "elsewhere"}, []),
        ({**RUN, "name": "b", "keep": 9, "on_nonfinite": "stop"}, []),
        ({"learning_rate": 0.5}, ["setting learning_rate: 0.0005 then, 0.5 now"]),
        ({"seed": 5, "log_every": 1}, ["setting seed: 4 then, 5 now"]),
        ({"precision": "fp32"}, ["setting precision: amp then, fp32 now"]),
    ],
)
@pytest.mark.parametrize("module", sorted(OLDER))
def test_an_older_run_goes_on_unless_a_step_would_change(module, changes, differences):
    older = {name: value for name, value in OLDER[module].items() if name != "run"}
    config = make(importlib.import_module(module).Config, **{**older, **RUN, **changes})
    now = described(identity.settings_of(config), config)
    assert identity.differences(described(older), now) == ([], differences, [])


def test_data_are_compared_by_their_content_not_their_path():
    older = {name: v for name, v in OLDER["recipes.classification"].items() if name != "run"}
    config = importlib.import_module("recipes.classification").Config
    moved = make(config, **{**older, "train": "c.tsv", "dev": "d.tsv", "vocab": "v.txt"})
    then, now = described(older), described(identity.settings_of(moved), moved)
    assert identity.differences(then, now) == ([], [], [])
    now["data"] = {"train": "another"}
    assert identity.differences(then, now).forcible == ["data train: absent then, another now"]


@pytest.mark.parametrize("name", ["epochs", "steps"])
def test_a_run_may_grow_longer_without_force(name):
    """Where one pass is the whole run, its batches are others behind the first."""
    then, now = described({name: 8, "seed": 1}), described({name: 12, "seed": 1})
    for side, steps in ((then, 80), (now, 120)):
        side["may change"] = side["by default"] = []
        side["data"] = {"first batch": "a", "steps an epoch": steps, identity._BATCHES: str(steps)}
    assert identity.differences(then, now) == ([], [], [f"{name} 8 then, 12 now"])
    shorter = identity.differences(now, then)
    assert f"setting {name}: 12 then, 8 now" in shorter.forcible
    now["data"]["first batch"] = "b"
    assert identity.differences(then, now).forcible == ["data first batch: a then, b now"]


def test_what_an_old_checkpoint_says_nothing_about_is_not_compared():
    then, now = described({"seed": 1}), described({"seed": 1, "younger": None})
    now["may change"], now["by default"] = [], ["younger"]
    then["data"] = {"steps an epoch": 4}
    now["data"] = {"steps an epoch": 4, "first batch": "a"}
    then["assets"], now["assets"] = {"vocab.txt": "v"}, {"vocab.txt": "v", "bert_config.json": "b"}
    assert identity.differences(then, now) == ([], [], [])
    now["assets"]["vocab.txt"] = "w"
    assert identity.differences(then, now).forcible == ["file vocab.txt: v then, w now"]
