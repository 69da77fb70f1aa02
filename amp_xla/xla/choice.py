"""What was found fastest, remembered by everything that decides it.

``runs/tuned.json``: key -> choice. The key covers the recipe, its configuration (which gives model
and shapes), the data files' sizes, the device, its driver and TensorFlow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, Optional

from amp_xla.xla.machine import Machine

CACHE = Path("runs") / "tuned.json"
# Fields of a recipe's configuration that change neither the graph nor its shapes.
_FREE = frozenset(
    ["precision", "xla", "epochs", "learning_rate", "warmup", "weight_decay", "seed", "run"]
    + ["evaluate_every", "patience", "log_every", "on_bad_line"]
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The fastest finite combination; ``samples_per_second`` as it was measured."""

    precision: str
    xla: str
    samples_per_second: float


def key(recipe: str, config: Any, machine: Machine) -> str:
    """Names a question whose answer is a ``Choice``: equal keys, equal answers."""
    fields: Dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if name not in _FREE:
            fields[name] = value
            if isinstance(value, str) and os.path.isfile(value):
                fields[name + ":bytes"] = os.path.getsize(value)
    question = {
        "recipe": recipe,
        "config": fields,
        "device": machine.device,
        "cores": machine.cores,
        "driver": machine.driver,
        "tensorflow": machine.tensorflow,
        "fork": machine.fork,
        "bert4keras": machine.bert4keras,
    }
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def remember(name: str, choice: Choice, path: Path = CACHE) -> None:
    """Writes the choice under ``name``; what else is there stays."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(path) + ".lock"):
        known = _read(path)
        known[name] = dataclasses.asdict(choice)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(str(new), str(path))


def recall(name: str, path: Path = CACHE) -> Optional[Choice]:
    """The choice under ``name``, or None."""
    found = _read(path).get(name)
    return None if found is None else Choice(**found)


def _read(path: Path) -> Dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # absent, or half written by an older version: measured again
        return {}
