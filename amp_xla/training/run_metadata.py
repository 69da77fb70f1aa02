"""Copies of configuration and files in a run folder, for people and for choosing the runtime.

Resuming reads the checkpoint instead. ``verify`` compares the copies with the checkpoint.
Imports no TensorFlow.
"""

from __future__ import annotations

import datetime
import platform
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from amp_xla import __version__
from amp_xla.config import document
from amp_xla.process.progress import note
from amp_xla.process.revision import revision
from amp_xla.training import json_files
from amp_xla.training.checkpoint import Checkpoint, sha256
from amp_xla.training.run import RunFolder

CONFIG, PROCESS = "config.json", "run.json"


def describe_process(recipe: str, engine: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the content of ``run.json``.

    Args:
      recipe: its name.
      engine: versions, devices and number of parameters.
    """
    return {
        "recipe": recipe,
        "command": " ".join(map(shlex.quote, sys.argv)),
        "amp_xla": __version__,
        "revision": revision(),
        "python": platform.python_version(),
        **engine,
        "host": platform.platform(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def write(
    run: RunFolder,
    config: Any,
    process: Mapping[str, Any],
    files: Mapping[str, bytes],
    resume_from: Optional[Checkpoint],
) -> None:
    """Write all copies; for a resumed run, name those that were missing or wrong.

    Args:
      run: the run folder.
      config: the recipe's configuration.
      process: content of ``run.json``; a resumed run keeps a usable one.
      files: name -> content of each file needed for prediction.
      resume_from: checkpoint that the run continues from.

    Raises:
      AmpXlaError: the file cannot be written, e.g. on a full disk.
    """
    wrong = {} if resume_from is None else dict(differences(run.path, resume_from))
    if wrong:
        words = "; ".join(f"{name} ({problem})" for name, problem in wrong.items())
        note(f"rewritten in {run.path}: {words}")
    if resume_from is None or PROCESS in wrong:
        run.write_json(PROCESS, process)
    run.write_json(CONFIG, document(config))
    for name, data in sorted(files.items()):
        run.write(name, data)


def differences(run: Path, checkpoint: Checkpoint) -> List[Tuple[str, str]]:
    """Return (file, problem) for each copy in a run folder that differs from a checkpoint."""
    problems = []
    for name in (*sorted(checkpoint.identity["assets"]), CONFIG, PROCESS):
        try:
            problem = _problem(run / name, checkpoint)
        except (OSError, ValueError) as error:
            problem = f"unreadable: {error}" if (run / name).exists() else "missing"
        if problem:
            problems.append((name, problem))
    return problems


def _problem(path: Path, checkpoint: Checkpoint) -> str:
    identity = checkpoint.identity
    if path.name in identity["assets"]:
        same = sha256(path) == identity["assets"][path.name]
        return "" if same else "differs from the checkpoint's"
    values, free = json_files.read(path), identity.get("may change", [])
    expected = {"recipe": checkpoint.recipe} if path.name == PROCESS else identity["config"]
    wrong = [n for n, v in sorted(expected.items()) if n not in free and values.get(n) != v]
    return f"differs from the checkpoint's in {', '.join(wrong)}" if wrong else ""
