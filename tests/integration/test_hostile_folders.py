"""Folders that somebody made to do harm, with the commands that build models.

Each command ends with one line or works; it needs less than 2 GB more than it starts with, and
neither reads nor writes outside of the folder. `report` and `runs` are in tests/report, folders of
weights in tests/models.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest

from amp_xla.commands import export
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.training import checkpoint
from tests.integration.test_refused import (  # noqa: F401
    RESUMED,
    RUN,
    TINY,
    command,
    forged,
    signed_again,
    trained,
)  # fmt: skip
from tests.support import google_folder
from tests.support.commands import PREDICT, RECIPE, VERIFY, Commands, bytes_of

pytestmark = [pytest.mark.once, pytest.mark.slow]
SECRET = "do-not-show"
EXPORT = "amp_xla.commands.export"
# Private memory, from what the process that forks has: a limit of all would count what is mapped.
LIMIT = """
import resource
with open("/proc/self/status") as file:
    (used,) = [int(line.split()[1]) for line in file if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + (2 << 30),) * 2)
"""


def asset(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a change: another file in each checkpoint, with a manifest that fits."""

    def change(run: Path) -> None:
        for path in checkpoint.steps(run / "checkpoints"):
            durable.write(path / name, content)
            signed_again(path)

    return change


def setting(**values: Any) -> Callable[[Path], None]:
    return lambda run: forged(run, lambda state: state["identity"]["config"].update(values))


def loop(**values: Any) -> Callable[[Path], None]:
    return lambda run: forged(run, lambda state: state["loop"].update(values))


def elsewhere(run: Path) -> None:
    """The checkpoints are a link."""
    (run / "checkpoints").rename(run.parents[2] / "outside" / "checkpoints")
    (run / "checkpoints").symlink_to(run.parents[2] / "outside" / "checkpoints")


def pipe(run: Path) -> None:
    (run / ".lock").unlink()
    os.mkfifo(str(run / ".lock"))


BOMB, LIST = gzip.compress(bytes(1 << 30)), "labels.json"
CASES: Dict[str, Tuple[Callable[[Path], Any], str, str]] = {
    "checkpoints": (elsewhere, "predict resume verify", "checkpoints: is a link"),
    "lock": (pipe, "resume", ".lock is not a regular file"),
    "layers": (setting(layers=10**6), "resume", "a model with layers 1000000, hidden 8"),
    "hidden": (setting(hidden=2**20), "predict", "a model with layers 1, hidden 1048576"),
    "vocabulary": (asset("vocab.txt", BOMB), "predict", "vocab.txt: larger than"),
    "labels": (asset(LIST, b'[1, {"a": 2}]'), "export", "labels.json: a list of texts"),
    "labels of depth": (asset(LIST, b"[" * 10**6), "predict", "labels.json: JSON nested too deep"),
    "loop": (loop(step=-1), "resume", "negative count"),
    "sums": (loop(log_sums=["x"]), "resume", "loop.log_sums"),
    "epochs": (loop(epoch=10**18, step_in_epoch=10**18), "resume", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_forged_run_is_refused_in_one_line(
    command: Commands, name: str  # noqa: F811
) -> None:  # fmt: skip
    change, words, message = CASES[name]
    (command.folder / "outside").mkdir()
    change(command.folder / RUN)
    before = bytes_of(command.folder / "outside")
    flags = ("--train", "train.tsv", "--dev", "dev.tsv", "--epochs", "3", *TINY[4:])
    arguments: Dict[str, Tuple[Any, ...]] = {
        "predict": (PREDICT, "--run", RUN, "--file", "new.txt"), "verify": (VERIFY, "--run", RUN),
        "export": (EXPORT, "--run", RUN, "--format", "hf"), "resume": (RECIPE, *flags, *RESUMED),
    }  # fmt: skip
    for word in words.split():
        result = command(*arguments[word], code=LIMIT)
        assert result.code in (0, 2) and "Traceback" not in result.err, result.err
        assert not message or (result.code == 2 and message in result.error), (word, result.err)
    assert bytes_of(command.folder / "outside") == before


def test_copies_that_lead_elsewhere_are_replaced_and_not_read(
    command: Commands,  # noqa: F811
) -> None:
    run, outside = command.folder / RUN, command.folder / "outside"
    outside.mkdir()
    for name in ("config.json", "run.json", "metrics.jsonl", "labels.json", "report.html"):
        line = {"step": 1, "kind": "train", "loss": 1.0, "command": SECRET, "recipe": SECRET}
        (outside / name).write_text(json.dumps(line) + "\n")
        (run / name).unlink()
        (run / name).symlink_to(outside / name)
    for name in (".tmp-metrics.jsonl", ".tmp-config.json", ".tmp-report.html", ".tmp-export-hf"):
        (run / name).symlink_to(outside)
    (run / "status.json").unlink()
    for name in ("status.json", ".tmp-status.json", ".tmp-run.json"):
        os.mkfifo(str(run / name))
    before = bytes_of(outside)
    flags = ("--train", "train.tsv", "--dev", "dev.tsv", *TINY, "--epochs", "3", *RESUMED)
    results = [command(RECIPE, *flags), command(EXPORT, "--run", RUN, "--format", "hf")]
    results.append(command(PREDICT, "--run", RUN, "--file", "new.txt"))
    for result in results:
        assert result.code == 0 and SECRET not in result.out + result.err, result.err
    assert bytes_of(outside) == before
    kept = [p for p in run.rglob("*") if p.is_file() and not p.is_symlink()]
    assert all(SECRET.encode() not in path.read_bytes() for path in kept)
    again = command(EXPORT, "--run", RUN, "--format", "hf")
    assert "export-hf exists already" in again.error


def test_a_folder_of_weights_is_refused_before_texts_are_read(
    command: Commands, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    bert = google_folder.write(tmp_path / "bert")
    (bert / google_folder.NAME).write_text(json.dumps({"model_type": "roberta"}))
    (bert / "vocab.txt").unlink()
    words = ("--train", "train.tsv", "--dev", "nowhere.tsv", "--bert", str(bert))
    assert 'model_type "roberta" is not supported' in command(RECIPE, *words, code=LIMIT).error


def test_of_two_exports_into_one_folder_one_is_refused(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "model").touch()

    def late(folder: Path) -> None:
        write(folder)
        export.all_or_nothing(tmp_path / "out", write)

    with pytest.raises(AmpXlaError, match="out exists: another command wrote it meanwhile"):
        export.all_or_nothing(tmp_path / "out", late)
    assert sorted(bytes_of(tmp_path)) == ["out", "out/model"]
