"""Copies of configuration and files in a run folder, for people and for the choice of runtime.

Resuming reads the checkpoint, which has its own. ``verify`` compares the copies with it. Imports no
TensorFlow.
"""

from __future__ import annotations

import datetime
import platform
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
        "command": " ".join(sys.argv),
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
      AmpXlaError: the disk refused.
    """
    wrong = [] if resume_from is None else differences(run.path, resume_from)
    if wrong:
        words = "; ".join(f"{name} ({what})" for name, what in wrong)
        note(f"rewritten in {run.path}: {words}")
    if resume_from is None or PROCESS in dict(wrong):
        run.write_json(PROCESS, process)
    run.write_json(CONFIG, document(config))
    for name, data in sorted(files.items()):
        run.write(name, data)


def differences(run: Path, checkpoint: Checkpoint) -> List[Tuple[str, str]]:
    """Return (file, problem) for each copy in a run folder that differs from a checkpoint."""
    problems = []
    for name, digest in sorted(checkpoint.identity["assets"].items()):
        path = run / name
        try:
            if sha256(path) != digest:
                problems.append((name, "differs from the checkpoint's"))
        except OSError as error:
            problems.append((name, "missing" if not path.exists() else str(error.strerror)))
    for name, compare in ((CONFIG, _config), (PROCESS, _process)):
        try:
            problem = compare(json_files.read(run / name), checkpoint)
        except ValueError as error:
            problem = f"unreadable: {error}" if (run / name).exists() else "missing"
        if problem:
            problems.append((name, problem))
    return problems


def _config(values: Dict[str, Any], checkpoint: Checkpoint) -> str:
    values.pop("run", None)
    free = checkpoint.identity.get("may change", [])
    then, now = checkpoint.identity["config"], values
    names = sorted(
        key
        for key in {*then, *now}
        if key not in free and then.get(key, "absent") != now.get(key, "absent")
    )
    return f"differs from the checkpoint's in {', '.join(names)}" if names else ""


def _process(values: Dict[str, Any], checkpoint: Checkpoint) -> str:
    json_files.require(values, {"recipe": str})
    if values["recipe"] == checkpoint.recipe:
        return ""
    return f"of the recipe {values['recipe']}, not {checkpoint.recipe}"
