"""``amp-xla runs``: print a table of runs, the newest first."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np
from typing_extensions import Literal

from amp_xla.config import parse
from amp_xla.errors import AmpXlaError
from amp_xla.process import output
from amp_xla.report import record
from amp_xla.report.curves import short
from amp_xla.report.findings import changed
from amp_xla.report.record import Record


@dataclasses.dataclass(frozen=True)
class Config:
    """List runs: state, best value, steps, speed, age, and settings that are not defaults."""

    folder: str = "runs"
    """folder with the runs of all recipes, or of one recipe; or one run"""
    sort: Literal["age", "best", "steps", "speed"] = "age"
    """which runs come first: age = the newest, best = those with the best value (for each metric),
    steps = those with most steps, speed = the fastest"""


def main(argv: List[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "amp-xla runs FOLDER")
    root = Path(config.folder)
    if not root.is_dir():
        raise AmpXlaError(f"there is no folder {root}")
    paths = [path.parent for depth in ("", "*/", "*/*/") for path in root.glob(depth + "run.json")]
    runs = [record.read(path) for path in paths if not path.is_symlink()]
    if not runs:
        raise AmpXlaError(f"{root} has no runs; training writes them to runs/<recipe>/<name>")
    runs.sort(key=lambda run: _key(run, config.sort))
    rows = [[str(run.path), *_cells(run)] for run in runs]
    head = ["run", "state", "best", "steps", "samples/s", "age", "settings"]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)] + [0]
    output.lines(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in [head, *rows]
    )
    output.lines(_groups(sorted(runs, key=_age)))
    return 0


def _groups(runs: Sequence[Record]) -> Iterator[str]:
    """Yield a line for each group of finished runs that differ in their seed alone.

    Of several runs with the same seed, only the first one in ``runs`` is used.
    """
    groups: Dict[str, Dict[str, Record]] = {}
    for run in runs:
        settings = {**run.config, "seed": None, "recipe": run.process.get("recipe")}
        if run.state == "done" and run.best is not None:
            of_settings = groups.setdefault(json.dumps(settings, sort_keys=True), {})
            of_settings.setdefault(f"{run.config.get('seed')}", run)
    for group in (group for group in groups.values() if len(group) > 1):
        seeds = sorted(group, key=lambda seed: (len(seed), seed))  # 2 before 10
        values = [group[seed].best_value for seed in seeds]
        yield (
            f"seeds {', '.join(seeds)}: best {group[seeds[0]].monitor[4:]} mean "
            f"{np.mean(values):.4f}, standard deviation {np.std(values, ddof=1):.4f} "
            f"({', '.join(str(group[seed].path) for seed in seeds)})"
        )


def _age(run: Record) -> float:
    """Return the age of the run's log, or of a folder without one, in seconds; at least 0."""
    log = run.path / "metrics.jsonl"
    return max(0.0, time.time() - (log if log.is_file() else run.path).lstat().st_mtime)


def _key(run: Record, sort: str) -> Any:
    sign = -1.0 if run.higher_is_better else 1.0
    best = math.inf if run.best is None else sign * run.best_value
    keys = {"age": _age(run), "best": best, "steps": -run.steps, "speed": -run.speed}
    value = keys[sort]
    return (run.monitor if sort == "best" else "", math.isnan(value), value)


def _cells(run: Record) -> List[str]:
    best = "-" if run.best is None else f"{run.monitor[4:]} {run.best_value:.4f}"
    total = f"/{run.total_steps:,}" if run.total_steps else ""
    speed = f"{run.speed:,.0f}" if math.isfinite(run.speed) else "-"
    seconds = _age(run)
    age = next(
        f"{seconds / size:.0f} {unit}"
        for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
        if seconds >= size or unit == "s"
    )
    settings = " ".join(
        f"{name}={short(value) if isinstance(value, float) else value}"
        for name, (value, _) in changed(run).items()
    )
    return [run.state, best, f"{run.steps:,}{total}", speed, age, settings]
