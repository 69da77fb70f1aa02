"""From a config to a finished run: the order in which everything starts, in one place.

1. the run folder, with the config and what the process is (versions, revision, command);
2. ``build``: settings, TensorFlow, data, graph;
3. assets (vocabulary, labels) beside the checkpoints;
4. variables initialised; 5. the loop.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from amp_xla import __version__
from amp_xla.training.run import RunFolder


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How often the loop does what.

    Attributes:
      epochs: passes over the training data.
      log_every: steps between two lines of metrics.jsonl.
      evaluate_every: steps between evaluations; 0 = at the end of each epoch.
      checkpoint_every: steps between checkpoints; 0 = at each evaluation.
      monitor: name of the evaluated value that decides what is best.
      higher_is_better: direction of ``monitor``.
      patience: evaluations without improvement until the run stops; 0 = never.
    """

    epochs: int = 1
    log_every: int = 20
    evaluate_every: int = 0
    checkpoint_every: int = 0
    monitor: str = "accuracy"
    higher_is_better: bool = True
    patience: int = 0


def train(recipe: str, config: Any, build: Callable[[Any], Any], options: Any) -> int:
    """Trains ``recipe``; returns the process' exit code.

    Args:
      recipe: name of the module in ``recipes``.
      config: its frozen dataclass; ``config.name`` names the run.
      build: config -> ``Job``.
      options: ``LoopOptions``.
    """
    job = build(config)  # data errors come before a folder is made

    from amp_xla import setup
    from amp_xla.training.checkpoint import Checkpoints
    from amp_xla.training.loop import Loop
    from amp_xla.training.progress import note
    from amp_xla.training.step import initialize_variables

    note(f"settings: {setup.describe()}")
    run = RunFolder(recipe, config.name)
    run.write_config(config)
    run.write_json("run.json", describe_process(recipe, job))
    note(f"run folder: {run.path}")
    for name, save in job.assets.items():
        save(str(run.path / name))
    initialize_variables()
    checkpoints = Checkpoints(run.checkpoints, job.variables)
    loop = Loop(run, job.step, job.batches, job.evaluate, checkpoints, options)
    began = time.monotonic()
    state = loop.train()
    seconds = time.monotonic() - began
    note(
        f"done: best dev {options.monitor} {state.best:.4f} at step {state.best_step}; "
        f"{state.step} steps ({state.skipped} skipped), {state.samples} samples in "
        f"{seconds:.0f} s of training and evaluation"
    )
    note(f"predict with: make predict ARGS=\"--run {run.path} --file texts.txt\"")
    return 0


def describe_process(recipe: str, job: Any) -> Dict[str, Any]:
    """What ran: recipe, command, versions, hardware, git revision, time."""
    from amp_xla import backend

    return {
        "recipe": recipe,
        "command": " ".join(sys.argv),
        "amp_xla": __version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "tensorflow": backend.tensorflow().__version__,
        "nvidia_fork": backend.is_fork(),
        "bert4keras": ".".join(map(str, backend.bert4keras_version())),
        "host": platform.platform(),
        "gpus": backend.gpus(),
        "parameters": int(sum(v.shape.num_elements() for v in job.step.variables)),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _revision() -> Optional[str]:
    try:
        out = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )
        return out.stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return None
