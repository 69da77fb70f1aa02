"""``amp-xla report``: write the page of a run, or one page that overlays several runs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import List, Optional

from amp_xla.commands.evaluate import folders_of
from amp_xla.commands.predict import check_file
from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import durable, output
from amp_xla.report import page, record


@dataclasses.dataclass(frozen=True)
class Config:
    """Write report.html: curves, evaluations and configuration in one file, for any browser."""

    run: str = "runs/classification/latest"
    """run folders, separated by commas; the curves of several runs share one chart"""
    to: Optional[str] = None
    """file to write; none = report.html in the run folder, or in the parent folder of all runs"""


def main(argv: List[str]) -> int:
    """Run the command; print the path of the page."""
    config = parse(Config, argv, "amp-xla report RUN")
    folders = folders_of(config.run)
    shared = folders[0]
    if len(folders) > 1:
        shared = Path(os.path.commonpath([str(folder.resolve()) for folder in folders]))
    path = Path(config.to) if config.to else shared / page.REPORT
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    runs = [record.read(folder, name) for folder, name in zip(folders, names)]
    for run in runs:
        if run.state == "empty":
            raise AmpXlaError(f"{run.path} has no log of a run; `amp-xla runs` lists all runs")
    check_file(str(path))
    durable.replace(path, page.render(runs).encode("utf-8"))
    output.lines([f"written: {path}"])
    return 0
