"""``python -m amp_xla verify``: reads every byte of a run's checkpoints and says what is whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import List

from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.training import durable, manifest


@dataclasses.dataclass(frozen=True)
class Config:
    """Check that a run's checkpoints are as they were written."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""


def main(argv: List[str]) -> int:
    """The command; 0 = everything is whole, 1 = something is not, 2 = there is nothing to check."""
    config = parse(Config, argv, "python -m amp_xla verify")
    run = Path(config.run)
    folder = run / "checkpoints"
    checkpoints = manifest.steps(folder)
    if not checkpoints:
        raise AmpXlaError(f"{run} has no checkpoint; a run folder is named when training starts")
    damaged, whole = 0, []
    for path in checkpoints:
        wrong = manifest.problems(path)
        damaged += bool(wrong)
        if not wrong:
            whole.append(path)
        print(f"{path.name}  {'DAMAGED' if wrong else 'whole'}  {manifest.size(path):,} bytes")
        for line in wrong:
            print(f"    {line}")
    names = {path.name for path in checkpoints}
    for pointer in (manifest.LAST, manifest.BEST):
        try:
            name = manifest.pointed(folder, pointer)
        except ValueError as error:
            damaged += 1
            print(f"{error}")
            continue
        missing = name is not None and name not in names
        damaged += missing
        print(f"{pointer} -> {name}{'  MISSING' if missing else ''}")
    if whole:
        damaged += _check_files(run, whole[-1])
    for path in sorted(folder.iterdir()):
        if path.name.startswith((durable.TEMPORARY, "damaged-")):
            print(f"{path.name}  left over, not used")
    if not whole:
        print("no checkpoint is whole: this run cannot be resumed")
    elif damaged:
        print(f"--resume would continue from {whole[-1].name}")
    return 1 if damaged else 0


def _check_files(run: Path, checkpoint: Path) -> int:
    """Compares vocabulary, labels and config with what the checkpoint was made with."""
    then = json.loads((checkpoint / "state.json").read_text("utf-8"))["identity"]
    damaged = 0
    for name, digest in sorted(then["assets"].items()):
        path = run / name
        if not path.is_file() or manifest.sha256(path) != digest:
            damaged += 1
            print(f"{name}  {'differs' if path.is_file() else 'MISSING'}; --resume writes it anew")
    try:
        config = json.loads((run / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        print(f"config.json  unreadable ({error}); the checkpoint's state.json holds a copy")
        return damaged + 1
    if set(config) - {"run"} != set(then["config"]):
        print("config.json  is of another recipe than the checkpoint")
        damaged += 1
    return damaged
