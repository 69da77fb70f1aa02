"""Read a run folder as data, without TensorFlow and without executing anything from it.

The run may be unfinished, killed, or from an untrusted source. Missing and damaged files count as
empty, and fields of an unexpected type as missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import socket
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from amp_xla.errors import DataError
from amp_xla.process import json_files, regular

STATUS, EVALUATIONS = "status.json", "evaluation"
_MOST_STEPS = 2**53  # larger numbers are not exact in float64
_MOST_FIELDS = 64  # maximum number of fields in metrics.jsonl
_LARGEST_LOG, _MOST_LINES = 32 << 20, 100_000  # bytes and lines of metrics.jsonl to read
_LARGEST = 4 << 20  # bytes of each other file; a larger one counts as damaged
_SILENT_SECONDS = 1200.0  # a run writes a checkpoint every ten minutes, or more often
_NOT_FINITE = ("nan", "inf", "-inf")  # strings in metrics.jsonl, because JSON has no such numbers
Columns = Dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Record:
    """The content of a run folder.

    Attributes:
      name: name on the page, unique among the page's runs.
      config: content of ``config.json``, without its field ``run``.
      process: content of ``run.json``.
      state: ``running``, ``done``, ``stopped``, ``failed``, ``killed`` or ``empty``.
      train, dev: field of ``metrics.jsonl`` -> float64 [lines]; NaN for lines without the field.
      is_cut: whether ``metrics.jsonl`` is too large to be read to its end.
      evaluations: results of ``amp-xla evaluate`` by the name of their folder.
      nonfinite: the newest report of the overflow finder, if there is one.
    """

    path: Path
    name: str
    config: Dict[str, Any]
    process: Dict[str, Any]
    executed: Dict[str, Any]
    status: Dict[str, Any]
    state: str
    train: Columns
    dev: Columns
    is_cut: bool
    evaluations: Dict[str, Dict[str, Any]]
    nonfinite: List[str]

    @property
    def plan(self) -> Dict[str, Any]:
        """The planned steps, batch shapes and defaults; see ``amp_xla.training.run``."""
        return dictionary(self.status.get("plan"))

    @property
    def monitor(self) -> str:
        """The field of ``dev`` that decides which checkpoint is best; empty if there is none."""
        name = f"dev_{self.plan.get('monitor', 'accuracy')}"
        return name if name in self.dev else next((n for n in self.dev if n[:4] == "dev_"), "")

    @property
    def higher_is_better(self) -> bool:
        """True if higher values of ``monitor`` are better."""
        return bool(self.plan.get("higher_is_better", "loss" not in self.monitor))

    @property
    def best(self) -> Optional[int]:
        """The index of the best evaluation in ``dev``; None if no value is finite."""
        values = self.dev.get(self.monitor, np.zeros(0))
        if not np.isfinite(values).any():
            return None
        best = np.nanargmax if self.higher_is_better else np.nanargmin
        return int(best(np.where(np.isfinite(values), values, np.nan)))

    @property
    def best_value(self) -> float:
        """The best value of ``monitor``; NaN if there is none."""
        return float("nan") if self.best is None else float(self.dev[self.monitor][self.best])

    @property
    def best_step(self) -> int:
        """The step of the best evaluation; 0 if there is none."""
        return 0 if self.best is None else int(self.dev["step"][self.best])

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        ends = [part["step"][-1] for part in (self.train, self.dev) if len(part.get("step", ()))]
        with contextlib.suppress(OSError):  # a run may stop before its first line of metrics
            for entry in itertools.islice(os.scandir(self.path / "checkpoints"), 1000):
                if re.fullmatch(r"step-\d{1,9}", entry.name):
                    ends.append(int(entry.name[5:]))
        return int(max(ends, default=0))

    @property
    def total_steps(self) -> int:
        """The number of steps of the whole run; 0 = unknown."""
        total = number(self.plan.get("total_steps"))
        return int(total) if 0 < total < _MOST_STEPS else 0

    def last(self, name: str) -> float:
        """Return the last number of a training field; NaN if there is none."""
        values = self.train.get(name, np.zeros(0))
        values = values[~np.isnan(values)]
        return float(values[-1]) if len(values) else float("nan")

    @property
    def speed(self) -> float:
        """The median of samples per second, without the first log line, which is slower."""
        values = self.train.get("samples_per_second", np.zeros(0))
        values = values[len(values) > 1 :]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else float("nan")


def read(path: Path, name: str = "") -> Record:
    """Read a run folder; ``name`` is its name on the page, by default the folder's name."""
    config, status = (_json(path / file) for file in ("config.json", STATUS))
    config.pop("run", None)
    train, dev, is_cut = _metrics(path / "metrics.jsonl")
    folders = _inside(path)
    results, left = {}, 4 * _LARGEST
    for folder in sorted(_inside(path / EVALUATIONS)) if path / EVALUATIONS in folders else []:
        results[folder.name] = _json(folder / "result.json", max(0, min(left, _LARGEST)))
        left -= len(str(results[folder.name]))
    # Only the newest report is shown, and there may be thousands.
    reports = sorted(file / "report.txt" for file in folders if "nonfinite-" in file.name)[-1:]
    return Record(
        path, name or path.resolve().name, config, _json(path / "run.json"),
        _json(path / "executed.json"), status, _state(path, status), train, dev,
        is_cut, results, [text for text in map(_text, reports) if text],
    )  # fmt: skip


def number(value: Any) -> float:
    """Return a number from a JSON file as a float; NaN for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if not abs(value) >= 1e300 else float("inf" if value > 0 else "-inf")
    return float(value) if value in _NOT_FINITE else float("nan")


def dictionary(value: Any) -> Dict[str, Any]:
    """Return ``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _state(run: Path, status: Mapping[str, Any]) -> str:
    state = status.get("state")
    if state in ("done", "stopped", "failed"):  # a process that continues the run overwrites it
        return str(state)
    if _in_use(run):
        return "running"
    return "killed" if (run / "metrics.jsonl").is_file() else "empty"


def _in_use(run: Path) -> bool:
    """Return whether a process trains the run, without taking the lock.

    The locks of other machines are not visible here. A run of another machine counts as running if
    it has written its log or a checkpoint lately.
    """
    lock = run / ".lock"
    try:
        if f":{os.lstat(str(lock)).st_ino} " in Path("/proc/locks").read_text():
            return True
        here = _text(lock).endswith(f" on {socket.gethostname()}")
        written = [os.lstat(str(run / name)).st_mtime for name in ("metrics.jsonl", "checkpoints")]
    except OSError:
        return False
    return not here and time.time() - max(written) < _SILENT_SECONDS


def _inside(path: Path) -> List[Path]:
    try:
        return [p for p in path.iterdir() if p.is_dir() and not p.is_symlink()]
    except OSError:
        return []


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return regular.read(path, most=_LARGEST).decode("utf-8", "replace")
    return ""


def _json(path: Path, most: int = _LARGEST) -> Dict[str, Any]:
    with contextlib.suppress(OSError, DataError):
        return json_files.read(path, most=most)
    return {}


def _metrics(path: Path) -> Tuple[Columns, Columns, bool]:
    """Return training columns, dev columns and ``is_cut``; skip lines that cannot be decoded."""
    records: Dict[str, List[Dict[str, Any]]] = {"train": [], "dev": []}
    is_cut = False
    with contextlib.suppress(OSError):
        lines = iter(regular.lines(path, _LARGEST_LOG))
        for line in itertools.islice(lines, _MOST_LINES):
            with contextlib.suppress(ValueError):
                record = json_files.decode(line)
                if 0 <= number(record.get("step")) < _MOST_STEPS:
                    records["dev" if record.get("kind") == "dev" else "train"].append(record)
        is_cut = path.lstat().st_size > _LARGEST_LOG or next(lines, None) is not None
    return _columns(records["train"]), _columns(records["dev"]), is_cut


def _columns(records: List[Dict[str, Any]]) -> Columns:
    """Return a column for each field that has a number in some line; rows are sorted by step."""
    names = dict.fromkeys(itertools.chain.from_iterable(records))
    columns = {}
    for name in itertools.islice(names, _MOST_FIELDS):
        values = [record.get(name) for record in records]
        column = np.array([number(value) for value in values], np.float64)
        if not np.isnan(column).all() or "nan" in values:
            columns[name] = column
    if "step" in columns:
        order = np.argsort(columns["step"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
    return columns
