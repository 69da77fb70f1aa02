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

from amp_xla.errors import AmpXlaError
from amp_xla.process import durable
from amp_xla.process.fields import SAME_SPEED, unmarked
from amp_xla.speed.machine import Machine

CACHE = Path("runs") / "tuned.json"


@dataclasses.dataclass(frozen=True)
class Choice:
    """The fastest finite combination; ``samples_per_second`` as it was measured."""

    precision: str
    xla: str
    samples_per_second: float


def key(recipe: str, config: Any, machine: Machine) -> str:
    """Names a question whose answer is a ``Choice``: equal keys, equal answers."""
    fields: Dict[str, Any] = unmarked(config, SAME_SPEED)
    for name, value in list(fields.items()):
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


def check_writable(path: Path = CACHE) -> None:
    """``remember`` will have a place: found out before the measuring, not after it.

    Raises:
      AmpXlaError: no permission, a read-only file system.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(str(path) + ".lock", "a"):
            pass
    except OSError as error:
        raise AmpXlaError(
            f"cannot keep the choice in {path}: {error.strerror}; start tune in a folder that can "
            f"be written"
        ) from error


def remember(name: str, choice: Choice, path: Path = CACHE) -> None:
    """Writes the choice under ``name``; what else is there stays."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(path) + ".lock"):
        known = _read(path)
        known[name] = dataclasses.asdict(choice)
        durable.replace(path, json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")


def recall(name: str, path: Path = CACHE) -> Optional[Choice]:
    """The choice under ``name``, or None."""
    try:
        return Choice(**_read(path)[name])
    except (KeyError, TypeError):  # not there, or of another version
        return None


def _read(path: Path) -> Dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # absent, or not what is written here: measured again
        return {}
