"""Files as public data sets ship them: train, evaluate and predict; counts are checked."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import CLI, PREDICT, Commands
from tests.support.public_layouts import DEV, LAYOUTS, TEST, TRAIN, WITH_PAIRS, samples, texts

pytestmark = [pytest.mark.once, pytest.mark.slow]

TINY = (
    "--layers", "1", "--hidden", "8", "--max-length", "24", "--shapes", "1", "--batch-size", "16",
    "--vocab-size", "200", "--epochs", "1", "--name", "one",
)  # fmt: skip
# Without training, tests/data/text/test_public_layouts.py reads all of them.
IN_CI = ("CMeEE", "GLUE RTE")


@pytest.mark.parametrize("name", [
    name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS
])  # fmt: skip
def test_a_public_layout(server, tmp_path, name):
    layout, command = LAYOUTS[name], Commands(server, tmp_path)
    (tmp_path / layout.name).write_text(layout.write(samples(TRAIN, 1)), encoding="utf-8")
    (tmp_path / f"dev.{layout.name}").write_text(layout.write(samples(DEV, 2)), encoding="utf-8")
    test = "test.txt" if layout.write_test is texts else f"test.{layout.name}"
    (tmp_path / test).write_text(layout.write_test(samples(TEST, 3)), "utf-8")
    data = ("--train", layout.name, "--dev", f"dev.{layout.name}")
    done = command(f"recipes.{layout.recipe}", *data, *TINY, *layout.flags)
    assert done.code == 0, done.err
    unit = "pairs" if layout.recipe == "similarity" else "texts"
    assert layout.says in done.err
    assert f"{TRAIN} training and {DEV} dev {unit}" in done.err, done.err
    run = f"runs/{layout.recipe}/one"
    done = command(PREDICT, "--run", run, "--file", test, "--json")
    assert done.code == 0, done.err
    answers = [json.loads(line) for line in done.out.splitlines()]
    pairs = name in WITH_PAIRS
    found = [answer["text"] for answer in answers if answer["text"]]
    assert found == [s.text + f"\t{s.pair}" * pairs for s in samples(TEST, 3)]
    done = command(CLI, "evaluate", run, "--file", f"dev.{layout.name}", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)[run]
    assert result["samples"] == DEV
    if result["per_label"]:
        assert sum(row["support"] for row in result["per_label"]) == DEV
