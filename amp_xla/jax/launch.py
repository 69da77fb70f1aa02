"""A JAX recipe from its config to a finished run; see ``amp_xla.training.launch``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional

import equinox
import jax
import numpy as np
import optax

from amp_xla.errors import AmpXlaError
from amp_xla.jax import checkpoints, processes
from amp_xla.jax.loop import Job, Loop
from amp_xla.process.progress import note
from amp_xla.process.world import world
from amp_xla.training import identity, run_metadata
from amp_xla.training import launch as tensorflow
from amp_xla.training.checkpoint import Checkpoint, CheckpointError, find, tidy
from amp_xla.training.checkpoint_writer import CheckpointWriter
from amp_xla.training.options import LoopOptions, RunOptions
from amp_xla.training.run import ReadOnlyRunFolder, RunFolder


def train(recipe: str, config: Any, build: Callable[..., Job], options: LoopOptions) -> int:
    """As ``amp_xla.training.launch.train``, for a recipe whose ``build`` gives a JAX ``Job``."""
    return tensorflow.train(recipe, config, build, options, Engine)


class Engine:
    """What of a start is JAX's own."""

    @staticmethod
    def folder(recipe: str, config: Any) -> RunFolder:
        """The run folder; of several processes the first one looks, and tells its name."""
        processes.join()
        asked: RunOptions = config.run
        if not processes.first():
            return ReadOnlyRunFolder(recipe, processes.gather("")[0])
        run = RunFolder(recipe, asked.name, resume=asked.resume)
        processes.gather(run.name)
        return run

    @staticmethod
    def newest(run: RunFolder) -> Optional[Checkpoint]:
        """The checkpoint to go on from, the same one in every process."""
        resume_from = None if isinstance(run, ReadOnlyRunFolder) else run.newest()
        name = processes.gather(None if resume_from is None else resume_from.path.name)[0]
        if not isinstance(run, ReadOnlyRunFolder) or name is None:
            return resume_from
        path = run.checkpoints / name
        if not path.is_dir():
            raise AmpXlaError(f"{path} is not on this host: all of them must share runs/")
        return Checkpoint(path)

    @staticmethod
    def share(resume_from: Optional[Checkpoint], config: Any) -> None:
        """Nothing: any number of processes goes on from any checkpoint."""

    @staticmethod
    def check_device() -> None:
        """Says where it runs; a GPU that JAX cannot use is an error."""
        kinds = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        note(f"{jax.device_count()} devices ({jax.default_backend()}: {kinds}), "
             f"{jax.process_count()} processes")  # fmt: skip

    @staticmethod
    def prepare(
        run: RunFolder,
        recipe: str,
        config: Any,
        job: Job,
        options: LoopOptions,
        resume_from: Optional[Checkpoint],
    ) -> Loop:
        """The loop, ready to train; see ``amp_xla.training.start.prepare``."""
        asked: RunOptions = config.run
        assets = _contents(job.assets)
        if processes.first():
            run.check_writable(assets)
        found = _identity(job, config, assets)
        _same_on_all(found)
        if asked.warm_start and resume_from is None:
            _warm_start(job, asked.warm_start, assets)
        saver = CheckpointWriter(run.checkpoints, asked.keep, assets, run.has_checkpoint)
        loop = Loop(run, job, saver, options, asked, found)
        if resume_from is not None:
            _resume(loop, resume_from, asked.force_resume)
        if processes.first():
            run.begin()
            if resume_from is not None:
                tidy(resume_from)
        run.name = processes.gather(run.name)[0]
        saver.folder = run.checkpoints  # where the clock names a folder, ``begin`` found the name
        note(f"run folder: {run.path}")
        if processes.first():
            process = run_metadata.describe_process(recipe, _process(job))
            run_metadata.write(run, config, process, assets, resume_from)
        return loop


def _identity(job: Job, config: Any, assets: Mapping[str, bytes]) -> Dict[str, Any]:
    versions = {"jax": jax.__version__, "equinox": equinox.__version__, "optax": optax.__version__}
    return identity.assembled(
        job.batches, job.identity, config, checkpoints.shapes(job.state), assets,
        job.settings, versions,
    )  # fmt: skip


def _same_on_all(found: Dict[str, Any]) -> None:
    """Refuses processes that are about to train on something else than the first."""
    every = processes.gather(found)
    for number, other in enumerate(every):
        apart = identity.differences(every[0], other)
        lines = apart.fatal + apart.forcible + apart.longer
        if lines:
            raise AmpXlaError(
                f"process {number} is about to train on something else than process 0 (then: the "
                f"first, now: the other): {'; '.join(lines[:3])}"
            )


def _resume(loop: Loop, resume_from: Checkpoint, force: bool) -> None:
    if resume_from.recipe != loop.run.recipe:
        raise CheckpointError(
            f"{resume_from.path} is of the recipe {resume_from.recipe}, not of {loop.run.recipe}"
        )
    found = identity.differences(resume_from.identity, loop.identity)
    if found.fatal:
        raise CheckpointError(
            f"{resume_from.path} holds another model, and cannot be continued: "
            f"{'; '.join(found.fatal)}"
        )
    if found.forcible and not force:
        raise CheckpointError(
            f"{resume_from.path} belongs to a run that differs: {'; '.join(found.forcible)}; "
            f"start a new run, or give --force-resume to go on all the same"
        )
    loop.arrays = checkpoints.restored(resume_from, loop.arrays)
    loop.state = resume_from.loop
    loop.saved_at = loop.state.step
    if found.longer and loop.state.step_in_epoch == 0:
        loop.state.recount(loop.job.batches.steps_per_epoch)
    for line in found.forcible:
        note(f"resuming in spite of {line}")
    note(f"resumed from {resume_from.path.name}: step {loop.state.step}, epoch {loop.state.epoch}")


def _warm_start(job: Job, run: str, assets: Mapping[str, bytes]) -> None:
    saved = find(Path(run))
    then: Dict[str, str] = saved.identity["assets"]
    for name, digest in sorted(identity.digests(assets).items()):
        if name != "bert_config.json" and then.get(name, digest) != digest:
            raise CheckpointError(f"--warm-start {run}: its {name} is another than this run's")
    model = checkpoints.restored(saved, job.state.model, ".model")
    job.state = job.state._replace(model=model)
    note(f"warm start: weights of {saved.path}; everything else starts anew")


def _contents(assets: Mapping[str, Callable[[str], None]]) -> Dict[str, bytes]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, save in sorted(assets.items()):
            save(str(Path(folder) / name))
            found[name] = (Path(folder) / name).read_bytes()
    return found


def _process(job: Job) -> Dict[str, Any]:
    leaves = jax.tree_util.tree_leaves(job.state.model)
    return {
        "runtime": "jax",
        "jax": jax.__version__,
        "devices": [device.device_kind for device in jax.devices()],
        "processes": world().size,
        "parameters": int(sum(np.size(leaf) for leaf in leaves)),
    }
