"""README and the recipes' docstrings state the recorded results."""

import importlib

import pytest

from benchmarks import record
from tests.support.running import RECIPES, ROOT

pytestmark = pytest.mark.once

RECORDS = record.load()
IDS = [f"{r['recipe']}-{r['runtime']}" for r in RECORDS]


def test_the_recipes_of_readme_have_a_record_of_each_runtime():
    for name in ("classification", "pretraining"):
        assert {f"{name}-tf1", f"{name}-tf2"} <= set(IDS)
    assert {recorded["recipe"] for recorded in RECORDS} <= set(RECIPES)


@pytest.mark.parametrize("recorded", RECORDS, ids=IDS)
def test_what_is_stated_was_recorded(recorded):
    doc = importlib.import_module(f"recipes.{recorded['recipe']}").__doc__
    assert recorded["command"] in doc
    assert record.stated(recorded) in " ".join(doc.split())
    row = next(
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{recorded['command']}` |")
    )
    assert row.split(" | ")[{"tf1": 1, "tf2": 2}[recorded["runtime"]]].rstrip(" |") == record.cell(
        recorded
    )
    if "page" in recorded:  # the page of results has it
        page = (ROOT / "docs" / "results" / recorded["page"]).read_text(encoding="utf-8")
        assert recorded["command"] in page and f"**{recorded['result']}**" in page
