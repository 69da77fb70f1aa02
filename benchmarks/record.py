"""Train a recipe with its defaults and write the result into docs/results/recorded.json.

    ./amp-xla python -m benchmarks.record --recipe classification

Tests compare README and the recipe's docstring with this file. A new record replaces that of the
same recipe and runtime. The minutes are those of the whole command.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

from typing_extensions import Literal

from amp_xla.config import parse
from amp_xla.process.checkout import revision
from amp_xla.process.exits import exit_code
from amp_xla.speed import machine
from benchmarks import ROOT

RECORDS = ROOT / "docs" / "results" / "recorded.json"
# Recipe -> (field in metrics.jsonl, name for readers, function that picks the best value).
RESULTS: Dict[str, Any] = {
    "classification": ("dev_accuracy", "dev accuracy", max),
    "tagging": ("dev_f1", "dev F1", max),
    "similarity": ("dev_spearman", "dev Spearman", max),
    "seq2seq": ("dev_rouge_l", "dev ROUGE-L", max),
    "relations": ("dev_f1", "dev F1", max),
    "reading": ("dev_f1", "dev F1", max),
    "pretraining": ("dev_loss", "held-out loss", min),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a recipe with its defaults and record the result."""

    recipe: Literal[tuple(RESULTS)] = "classification"  # type: ignore[valid-type]
    """recipe to train"""


def main() -> int:
    """Train, write the record, and print the lines for docstring and README."""
    config = parse(Config, prog="python -m benchmarks.record")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        code = subprocess.run(
            [sys.executable, "-m", "amp_xla", "train", config.recipe],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        ).returncode
        if code:
            return code
        run = Path(folder) / "runs" / config.recipe / "latest"
        record = describe(config.recipe, run, time.monotonic() - began)
    keep(record)
    print(f"{stated(record)}\nREADME: {cell(record)}")
    return 0


def describe(recipe: str, run: Path, seconds: float) -> Dict[str, Any]:
    """Return the record of a finished run on this machine."""
    key, metric, best = RESULTS[recipe]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    here = machine.look()
    return {
        "recipe": recipe,
        "runtime": "tf1" if here.tensorflow.startswith("1.") else "tf2",
        "command": f"make train RECIPE={recipe}",
        "seed": json.loads((run / "config.json").read_text())["seed"],
        "metric": metric,
        "result": round(best(line[key] for line in lines if line.get(key) is not None), 4),
        "minutes": round(seconds / 60, 1),
        "minutes_of": "the whole command",
        "hardware": f"{here.device}, {here.cores} cores, load {os.getloadavg()[2]:.0f}",
        "tensorflow": here.tensorflow,
        "bert4keras": here.bert4keras,
        "python": here.python,
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
    }


def keep(record: Dict[str, Any]) -> None:
    """Write ``record``; it replaces the record of the same recipe and runtime."""
    same = ("recipe", "runtime")
    records = [r for r in load() if any(r[key] != record[key] for key in same)] + [record]
    records.sort(key=lambda r: [r[key] for key in same])
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def load() -> List[Dict[str, Any]]:
    """Return all records."""
    records: List[Dict[str, Any]] = json.loads(RECORDS.read_text("utf-8"))
    return records


def stated(record: Dict[str, Any]) -> str:
    """Return the sentence for a recipe's docstring."""
    return (
        f"TensorFlow {record['tensorflow']}: {record['metric']} {record['result']}, seed "
        f"{record['seed']}, {record['minutes']:g} minutes; {record['hardware']}; {record['date']}."
    )


def cell(record: Dict[str, Any]) -> str:
    """Return the cell for README's table."""
    return f"{record['metric']} {record['result']}, {record['minutes']:g} minutes"


if __name__ == "__main__":
    sys.exit(exit_code(main))
