"""inspect and rehearse with a model from a user's script."""

import json

import pytest

from tests.integration import example_scripts
from tests.support.commands import CLI


@pytest.fixture(scope="module")
def command(command):
    example_scripts.write(command.folder)
    return command


# Without --batch, a batch is made up from the model's inputs and loss.
@pytest.mark.parametrize(("words", "rows"), [
    (["tag.py:model", "--batch", "tagged"], (4, 24)),
    pytest.param(["tag.py:model"], (32, 128), marks=pytest.mark.once),
])  # fmt: skip
def test_a_model_is_inspected(command, words, rows):
    command.done(CLI, "inspect", *words)
    report = json.loads((command.folder / "runs/tag/inspect/amp.json").read_text())
    assert report["half_nodes"] > 50
    assert [tuple(shape[:2]) for shape in report["batch"].values()][:2] == [rows, rows]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(("words", "scale"), [
    (["--batch", "named", "--", "64"], 64.0),  # the script has arguments, too
    (["--batch", "title.py:batches"], 256.0),  # the loss scale of the optimizer
])  # fmt: skip
def test_a_model_is_rehearsed(command, words, scale):
    command.done(CLI, "rehearse", "title.py:with_batch", "--steps", "2", *words)
    path = command.folder / "runs/title/rehearse/rehearsal.json"
    steps = json.loads(path.read_text())["steps"]
    assert [step["loss_scale"] for step in steps] == [scale] * 2


@pytest.mark.once
@pytest.mark.parametrize(
    "words, message",
    [
        (["tag.py:modl"], "tag.py has no 'modl'; did you mean model?"),
        (["tag.py:texts"], "tag.py:texts is of type list; allowed: a compiled"),
        (
            ["tag.py:model", "--batch", "named"],
            "2 arrays for 3 placeholders; needed, in this",
        ),
        (["classification", "--batch", "tagged"], "classification is a recipe, which has its own"),
        (["rehearse", "tag.py:model"], "tag.py:model returns no batch to train on; give --batch"),
    ],
)
def test_one_clear_line(command, words, message):
    done = command(CLI, *(words if words[0] == "rehearse" else ["inspect", *words]))
    assert message in done.error
    assert not (command.folder / "runs" / "classification").exists()
