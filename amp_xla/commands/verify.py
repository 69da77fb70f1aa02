"""``amp-xla verify``: read all files of a run's checkpoints and compare their checksums."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List

from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.process.output import printable
from amp_xla.training import checkpoint


@dataclasses.dataclass(frozen=True)
class Config:
    """Check that the checkpoints of a run are undamaged."""

    run: str = "runs/classification/latest"
    """run folder, as printed at the end of training"""


def main(argv: List[str]) -> int:
    """Print the state of each checkpoint; return 1 if one is damaged, else 0."""
    config = parse(Config, argv, "amp-xla verify RUN")
    run = Path(config.run)
    folder = checkpoint.folder_of(run)
    paths = checkpoint.steps(folder)
    if not paths:
        raise AmpXlaError(f"{run} has no checkpoint; `amp-xla runs` lists the runs")
    best, whole = checkpoint.best(folder), []
    for path in paths:
        problems = checkpoint.problems(path)
        whole += [] if problems else [path]
        size = sum(file.lstat().st_size for file in path.iterdir())
        words = f"{'DAMAGED' if problems else 'whole'}{', best' if path == best else ''}"
        print(f"{path.name}  {words}  {size:,} bytes")
        for line in problems:
            print(printable(f"    {line}"))
    for path in sorted(folder.iterdir()):
        if path.name.startswith((durable.TEMPORARY, "damaged-")):
            print(printable(f"{path.name}  no checkpoint: unfinished, half deleted or set aside"))
    if not whole:
        print("no checkpoint is whole: this run cannot be resumed")
    elif len(whole) < len(paths):
        print(f"--resume would continue from {whole[-1].name}")
    return int(len(whole) < len(paths))
