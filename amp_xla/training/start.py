"""A run folder made ready, and a loop put where it starts: afresh, from weights, or resumed."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from amp_xla import __version__, backend, setup
from amp_xla.training import durable
from amp_xla.training import identity as identities
from amp_xla.training.checkpoint import (
    CheckpointError,
    Checkpoints,
    find,
    read_state,
    restore_weights,
)
from amp_xla.training.diagnosis import Diagnosis
from amp_xla.training.loop import Loop
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.progress import note
from amp_xla.training.random_state import unrepeatable
from amp_xla.training.run import RunFolder
from amp_xla.training.step import initialize_variables
from amp_xla.xla.watching import watched


def prepare(run: RunFolder, recipe: str, config: Any, job: Any, options: LoopOptions) -> Loop:
    """The loop, ready to train: variables set, from a checkpoint where the run continues.

    Args:
      run: the run folder, open.
      recipe: its name.
      config: its frozen dataclass.
      job: what its ``build`` returned.
      options: ``LoopOptions``.

    Raises:
      AmpXlaError: the run folder cannot be written, or its checkpoint does not fit this job.
    """
    asked: RunOptions = config.run
    note(f"settings: {setup.describe()}")
    note(f"run folder: {run.path}")
    initialize_variables()
    optimizer = job.step.optimizer
    checkpoints = Checkpoints(
        run.checkpoints, job.variables, asked.keep, getattr(optimizer, "state_variables", ())
    )
    identity = identities.describe(job, config, checkpoints.bundle.shapes())
    whole = checkpoints.newest_whole() if run.continues else None
    if whole is None:
        if asked.resume:
            note(f"{run.path} has no checkpoint yet: starting from the beginning")
        run.write_config(config)
    elif asked.force_resume:
        run.write_config(config)
    if whole is None or not (run.path / "run.json").exists():
        run.write_json("run.json", describe_process(recipe, job))
    for name, save in job.assets.items():
        _write_asset(run.path / name, save)
    if asked.warm_start:
        _warm_start(Path(asked.warm_start), job.model)
    for name in unrepeatable(job.step.train_op):
        note(f"{name} draws random numbers whose state TensorFlow hides: resuming is not exact")
    loop = Loop(
        run,
        watched(job.step, job.batches, setup.current().xla, note),
        job.batches,
        job.evaluate,
        checkpoints,
        options,
        asked,
        identity,
        diagnose=Diagnosis(run.path, job),
    )
    loop.export, loop.rates = job.export, job.rates
    if whole is not None:
        _resume(loop, checkpoints, whole, identity, asked.force_resume)
    return loop


def _resume(
    loop: Loop, checkpoints: Checkpoints, whole: Path, identity: Dict[str, Any], force: bool
) -> None:
    """Continues from ``whole``, or says what speaks against it."""
    found = identities.differences(read_state(whole)["identity"], identity)
    if found.fatal:
        raise CheckpointError(
            f"{whole} holds another model, and cannot be continued: {'; '.join(found.fatal)}"
        )
    if found.forcible and not force:
        raise CheckpointError(
            f"{whole} belongs to a run that differs: {'; '.join(found.forcible)}; start a new run, "
            f"or give --force-resume to go on all the same"
        )
    for line in found.forcible:
        note(f"resuming in spite of {line}")
    saved = checkpoints.restore(whole)
    loop.resume(saved)
    checkpoints.settle(whole, loop.state.best_step if loop.state.best is not None else None)
    note(
        f"resumed from {whole.name}: step {loop.state.step}, epoch {loop.state.epoch}, "
        f"{loop.state.samples} samples seen"
    )


def _warm_start(run: Path, model: Any) -> None:
    checkpoint = find(run)
    restore_weights(checkpoint, model.weights)
    note(
        f"warm start: weights of {checkpoint}; steps, optimizer, loss scale and order start anew "
        f"(--resume is what continues a run)"
    )


def _write_asset(path: Path, save: Callable[[str], None]) -> None:
    temporary = path.parent / f"{durable.TEMPORARY}{path.name}"
    save(str(temporary))
    durable.adopt(temporary, path)


def describe_process(recipe: str, job: Any) -> Dict[str, Any]:
    """What ran: recipe, command, versions, hardware, git revision, time."""
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
