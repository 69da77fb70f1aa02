"""inspect and rehearse with a model from a user's script."""

from __future__ import annotations

import json
import shutil
from typing import Any, Sequence

import pytest

from tests.support.commands import CLI, Commands
from tests.support.running import ROOT

TAGGER = "own_script.py:tagger"


@pytest.fixture(scope="module")
def command(command: Commands) -> Commands:
    folder = command.folder
    shutil.copy(str(ROOT / "tests/support/inspected_script.py"), str(folder / "own_script.py"))
    (folder / "own_data.py").write_text("LENGTH = 24\n")
    return command


# Without --batch, a batch is made up from the model's inputs and loss.
@pytest.mark.parametrize(("words", "rows"), [
    ([TAGGER, "--batch", "tagged"], (4, 24)),
    pytest.param([TAGGER], (32, 128), marks=pytest.mark.once),
])  # fmt: skip
def test_a_model_is_inspected(command: Commands, words: Sequence[str], rows: Any) -> None:
    command.done(CLI, "inspect", *words)
    report = json.loads((command.folder / "runs/own_script/inspect/amp.json").read_text())
    assert report["half_nodes"] > 50
    assert [tuple(shape[:2]) for shape in report["batch"].values()][:2] == [rows, rows]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(("words", "scale"), [
    (["--batch", "named", "--", "64"], 64.0),  # the script has arguments, too
    (["--batch", "own_script.py:batches"], 256.0),  # the loss scale of the optimizer
])  # fmt: skip
def test_a_model_is_rehearsed(command: Commands, words: Sequence[str], scale: float) -> None:
    command.done(CLI, "rehearse", "own_script.py:title_writer", "--steps", "2", *words)
    path = command.folder / "runs/own_script/rehearse/rehearsal.json"
    steps = json.loads(path.read_text())["steps"]
    assert [step["loss_scale"] for step in steps] == [scale] * 2


@pytest.mark.once
@pytest.mark.parametrize(
    "words, message",
    [
        (["own_script.py:taggr"], "own_script.py has no 'taggr'; did you mean tagger?"),
        (["own_script.py:SIZES"], "own_script.py:SIZES is of type dict; allowed: a compiled"),
        ([TAGGER, "--batch", "named"], "2 arrays for 3 placeholders; needed, in this order"),
        (["classification", "--batch", "tagged"], "classification is a recipe, which has its own"),
        (["rehearse", TAGGER], "own_script.py:tagger returns no batch to train on; give --batch"),
        (["rehearse", TAGGER, "--loss-scale", "8"], "--loss-scale 8: the optimizer of own_script"),
    ],
)
def test_one_clear_line(command: Commands, words: Sequence[str], message: str) -> None:
    done = command(CLI, *(words if words[0] == "rehearse" else ["inspect", *words]))
    assert done.code == 2 and message in done.error
    assert not (command.folder / "runs" / "classification").exists()
