"""``amp-xla verify``: reads every byte of a run's checkpoints and says what is whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Optional

from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.training import copies
from amp_xla.training.checkpoint import Saved, manifest
from amp_xla.training.checkpoint.saved import known_best


@dataclasses.dataclass(frozen=True)
class Config:
    """Check that a run's checkpoints are as they were written."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""


def main(argv: List[str]) -> int:
    """The command; 0 = everything is whole, 1 = something is not, 2 = there is nothing to check."""
    config = parse(Config, argv, "amp-xla verify RUN")
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
    names = [path.name for path in checkpoints]
    damaged += _check_pointer(folder, manifest.LAST, names, names[-1])
    damaged += _check_pointer(folder, manifest.BEST, names, known_best(folder, names))
    if whole:
        for name, what in copies.differing(run, Saved(whole[-1])):
            damaged += 1
            print(f"{name}  {what}; --resume writes it anew")
    for path in sorted(folder.iterdir()):
        if path.name.startswith((durable.TEMPORARY, "damaged-")):
            print(f"{path.name}  left over, not used")
    if not whole:
        print("no checkpoint is whole: this run cannot be resumed")
    elif damaged:
        print(f"--resume would continue from {whole[-1].name}")
    return 1 if damaged else 0


def _check_pointer(folder: Path, pointer: str, names: List[str], right: Optional[str]) -> int:
    """Prints where a pointer leads; returns 1 where that is wrong. ``right`` None = not known."""
    try:
        name = manifest.pointed(folder, pointer)
    except ValueError as error:
        print(f"{error}")
        return 1
    wrong = ""
    if name is not None and name not in names:
        wrong = "  MISSING"
    elif right is not None and name != right:
        wrong = f"  WRONG, it is {right}; --resume sets it right"
    print(f"{pointer} -> {name}{wrong}")
    return int(bool(wrong))
