"""Run folders that somebody made to do harm: `report` and `runs` read nothing outside, and end."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from amp_xla.commands import cli
from tests.support import run_folders as folders
from tests.support.commands import bytes_of

pytestmark = pytest.mark.once
SECRET = "do-not-show"
FILES = (
    "metrics.jsonl", "config.json", "run.json", "status.json", "executed.json", ".lock",
    "report.html", ".tmp-report.html", "nonfinite-00000190/report.txt",
    "evaluation/test.tsv/result.json",
)  # fmt: skip
FOLDERS = ("checkpoints", "evaluation", "nonfinite-00000190", "evaluation/test.tsv")


def linked(path, outside):
    """Leave what is there outside, with a secret in it, and a link in its place."""
    target = outside / path.name.lstrip(".")
    if path.is_dir():
        path.rename(target)
    else:
        target.write_text(path.read_text() if path.exists() else "")
        path.unlink() if path.exists() else None
    for file in [target] if target.is_file() else filter(Path.is_file, target.rglob("*")):
        text = file.read_text()
        file.write_text(f'{{"text": "{SECRET}", {text[1:]}' if text[:1] == "{" else f"{SECRET}\n")
    path.symlink_to(target)


def pipe(path, outside):
    path.unlink() if path.exists() else None
    os.mkfifo(str(path))


def sparse(path, outside):
    with path.open("ab") as file:
        file.truncate(1 << 40)


def deep(path, outside):
    for opening, closing in (('{"a": ', "}"), ("[", "]")):
        path.write_text('{"step": 1, "plan": ' + opening * 300 + "1" + closing * 300 + "}\n")


CHANGES = [
    # Without its log a run has no page, which would hide what the page shows of other files.
    *itertools.product((linked, pipe, sparse, deep), (FILES[:1], FILES[1:])),
    *((linked, (folder,)) for folder in FOLDERS),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = folders.diverged(folder / "r" / "mine")
    folders.scored(run, "sport")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-00000001.txt").write_text("x")
    (run / ".lock").write_text("process 1")
    folders.good(folder / "r" / "other")
    return folder


@pytest.fixture
def run(runs, tmp_path):
    shutil.copytree(str(runs), str(tmp_path / "runs"))
    (tmp_path / "outside").mkdir()
    return tmp_path / "runs" / "r" / "mine"


def both(run, capsys):
    """Run both commands; return all that they print and the page."""
    assert cli.main(["runs", str(run.parents[1])]) == 0
    assert cli.main(["report", str(run)]) in (0, 2)
    said = capsys.readouterr()
    assert "r/mine" in said.out and "r/other" in said.out
    assert "Traceback" not in said.err
    page = run / "report.html"
    own = page.is_file() and not page.is_symlink() and page.stat().st_size < 1 << 30
    return said.out + said.err + (page.read_text() if own else "")


@pytest.mark.parametrize(
    "change, names", CHANGES, ids=lambda x: getattr(x, "__name__", None) or x[0]
)
def test_a_file_in_place_of_which_is_something_else(run, capsys, change, names):
    for name in names:
        (run.parents[2] / "outside" / name).parent.mkdir(parents=True, exist_ok=True)
        change(run / name, run.parents[2] / "outside")
    before = bytes_of(run.parents[2] / "outside")
    assert SECRET not in both(run, capsys)
    assert bytes_of(run.parents[2] / "outside") == before


LINES = (
    "null", "[]", '{"step": "x"}', '{"step": 3, "loss": {"a": 1}, "kind": []}', "{]",
    '{"step": true, "loss": 1}', '{"step": 1e999, "loss": 1}', '{"step": -5}', '{"step": 1e400}',
    '{"step": 90000000000000000000, "loss": 2}', '{"step": 9000000000000000000, "loss": 2}',
    '{"step": 3, "kind": "dev", "dev_accuracy": 1e999}', '{"step": 4, "loss": 5e-324}', "[" * 9999,
    '{"step": 5, "\\u202e\\u001b[31m": 3}', '{"step": 6, "loss": -1e308, "loss_scale": 1e308}',
)  # fmt: skip


def test_one_bad_line_breaks_neither_this_run_nor_the_others(run, capsys):
    log = run / "metrics.jsonl"
    text = log.read_text()
    for first in range(4):
        log.write_text("\n".join([text, *LINES[first::4], ""]))
        said = both(run, capsys)
        assert "\u202e" not in said and "\x1b" not in said, first
    log.write_text("".join(f"{line}\n" for line in LINES))
    os.utime(str(log), (4e9, 4e9))
    assert re.search(r" 0 s\b", both(run, capsys))


HOSTILE = (
    None, True, -1, 10**18, float("inf"), 1e308, 5e-324, "x" * 3000, "\u202e\x1b[31m", [], {},
    [[[[]]]], {"a": {"b": [{}]}}, ["x", 1, None], "nan",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_fields_of_any_type_give_a_page(run, capsys, name):
    content = json.loads((run / name).read_text())
    for data in (b"", b"[1]", b"\xff"):
        (run / name).write_bytes(data)
        both(run, capsys)
    places = [(content, key) for key in content]
    places += [(part, key) for part in content.values() if isinstance(part, dict) for key in part]
    for start in range(0, len(places), 3):
        old = [part[key] for part, key in places[start : start + 3]]
        for number, (part, key) in enumerate(places[start : start + 3], start):
            part[key] = HOSTILE[number % len(HOSTILE)]
        (run / name).write_text(json.dumps(content))
        said = both(run, capsys)
        assert "\u202e" not in said and "\x1b" not in said, places[start][1]
        for (part, key), value in zip(places[start:], old):
            part[key] = value
